"""Log-mel energies of kaldi-native-fbank, checked against the definition in double precision:
tests/unit/audio/golden/<case>.json with the front end's config, 16-bit samples and the reference's rows."""

import importlib.metadata
import json
import math
import pathlib
import zlib

import kaldi_native_fbank
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPSILON = float(numpy.finfo(numpy.float32).eps)
# Of a band's energy, relative to the whole energy of the frame's transform: a float transform of N points
# has a relative error of about log2(N) roundings, the square twice that, and there are two computations.
ROUNDINGS = 64
CASES = {
    "telephone": {"sample_rate": 8000, "window": "hamming", "mels": 40, "low_hz": 20.0, "high_hz": 4000.0,
                  "pre_emphasis": 0.97, "remove_offset": True},
    "wide_band": {"sample_rate": 16000, "window_ms": 20.0, "hop_ms": 12.5, "window": "hann", "mels": 24,
                  "low_hz": 60.0, "high_hz": 7600.0, "pre_emphasis": 0.0, "remove_offset": False},
}


def samples_of(name, config):
    """0.3 s: an offset, a tone that rises, noise, and a silence at the end."""
    random = numpy.random.Generator(numpy.random.PCG64(zlib.crc32(name.encode())))
    count = int(0.3 * config["sample_rate"])
    time = numpy.arange(count) / config["sample_rate"]
    sound = 0.02 + 0.3 * numpy.sin(2 * math.pi * (200 + 3000 * time) * time) + 0.01 * random.standard_normal(count)
    sound[-count // 6:] = 0
    return numpy.round(32768 * sound).astype(numpy.int16)


def reference(config, samples):
    options = kaldi_native_fbank.FbankOptions()
    frame = options.frame_opts
    frame.samp_freq = config["sample_rate"]
    frame.frame_length_ms = config.get("window_ms", 25.0)
    frame.frame_shift_ms = config.get("hop_ms", 10.0)
    frame.dither = 0.0
    frame.preemph_coeff = config["pre_emphasis"]
    frame.remove_dc_offset = config["remove_offset"]
    frame.window_type = {"hann": "hanning"}.get(config["window"], config["window"])
    frame.snip_edges = True
    options.mel_opts.num_bins = config["mels"]
    options.mel_opts.low_freq = config["low_hz"]
    options.mel_opts.high_freq = config["high_hz"]
    options.use_energy = False
    fbank = kaldi_native_fbank.OnlineFbank(options)
    fbank.accept_waveform(config["sample_rate"], samples.tolist())
    fbank.input_finished()
    return numpy.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])


def definition(config, samples):
    """(log energies, whole energy of each frame's transform), in double precision."""
    rate = config["sample_rate"]
    size = int(rate * config.get("window_ms", 25.0) / 1000)
    hop = int(rate * config.get("hop_ms", 10.0) / 1000)
    points = 1 << (size - 1).bit_length()
    a = {"hann": 0.5, "hamming": 0.54}[config["window"]]
    window = a - (1 - a) * numpy.cos(2 * math.pi * numpy.arange(size) / (size - 1))
    mel = lambda hz: 1127 * numpy.log1p(hz / 700)  # noqa: E731
    corners = numpy.linspace(mel(config["low_hz"]), mel(config["high_hz"]), config["mels"] + 2)
    bins = mel(numpy.arange(points // 2) * rate / points)
    bands = [numpy.clip(numpy.minimum((bins - left) / (middle - left), (right - bins) / (right - middle)), 0, None)
             for left, middle, right in zip(corners, corners[1:], corners[2:])]
    rows, energies = [], []
    for begin in range(0, len(samples) - size + 1, hop):
        x = samples[begin:begin + size].astype(float)
        if config["remove_offset"]:
            x = x - x.mean()
        x = (x - config["pre_emphasis"] * numpy.concatenate([x[:1], x[:-1]])) * window
        power = numpy.abs(numpy.fft.rfft(x, points))[:points // 2] ** 2
        rows.append(numpy.log(numpy.maximum(numpy.array(bands) @ power, EPSILON)))
        energies.append(power.sum())
    return numpy.array(rows), numpy.array(energies)


def main():
    source = f"kaldi-native-fbank {importlib.metadata.version('kaldi-native-fbank')}"
    folder = ROOT / "tests/unit/audio/golden"
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in CASES.items():
        samples = samples_of(name, config)
        sound = samples.astype(numpy.float32) / 32768
        rows = reference(config, sound)
        wanted, energies = definition(config, sound)
        assert rows.shape == wanted.shape, (rows.shape, wanted.shape)
        worst = (numpy.abs(numpy.exp(rows) - numpy.exp(wanted)) / (ROUNDINGS * EPSILON * (energies[:, None] + EPSILON))).max()
        assert worst < 1, f"{name}: {worst:.2f} of the tolerance"
        document = {"source": source, "config": config, "samples": samples.tolist(),
                    "rows": [[float(f"{value:.8g}") for value in row] for row in rows]}
        path = folder / f"{name}.json"
        path.write_text(json.dumps(document, separators=(",", ":")) + "\n")
        print(f"{name:12s} {len(rows)} rows, {path.stat().st_size} bytes, {worst:.3f} of the tolerance")


if __name__ == "__main__":
    main()

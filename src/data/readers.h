#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/dataset.h"

namespace tarn::data {

/// Images of one IDX file (already inflated): magic 0x00000803, count, 28, 28, then the pixels.
Result<std::vector<uint8_t>> parse_idx_images(std::string_view content, const std::string& where);

/// Images of one CIFAR-10 binary batch: records of 1 label and three planes of 1,024 levels; each
/// image comes out as 1,024 pixels in raster order with R, G and B side by side.
Result<std::vector<uint8_t>> parse_cifar10_batch(std::string_view content,
                                                 const std::string& where);

Result<SequenceDataset> load_mnist(const DataSpec& spec, const std::string& directory, Split split);
Result<SequenceDataset> load_cifar10(const DataSpec& spec, const std::string& directory,
                                     Split split);
Result<SequenceDataset> load_text_bytes(const DataSpec& spec, const std::string& directory,
                                        Split split);

/// One copy sequence of 2·max_symbols + 1 tokens from its own random stream: n symbols, the
/// separator (number `symbols`), the n symbols again, then padding (number `symbols` + 1). Only the
/// repetition counts in the loss.
void copy_sequence(const DataSpec& spec, uint64_t seed, uint64_t stream, uint8_t* tokens,
                   uint8_t* counted);

/// One sequence of multi-query associative recall (Arora et al. 2023, arXiv 2312.04927), of
/// 4·max_pairs + max_filler tokens, from its own random stream: n pairs (key, value) with distinct
/// keys, then every key once more in random order, each followed by its value, then padding. Fillers
/// stand at random places behind the first pair and before the first question, never within a pair.
/// Only the values behind the questions count in the loss. Numbers: keys from 0, then values, then
/// fillers, the last is the padding.
void recall_sequence(const DataSpec& spec, uint64_t seed, uint64_t stream, uint8_t* tokens,
                     uint8_t* counted);

/// Cuts the images of a training file into the train or valid split.
Status take_split(std::vector<uint8_t>& images, int64_t image_bytes, int64_t holdout, Split split,
                  const std::string& where);

}  // namespace tarn::data

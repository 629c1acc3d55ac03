#include "power/disk_model.h"

#include <algorithm>
#include <set>

namespace tarn::power {
namespace {

using Kind = Operation::Kind;

constexpr size_t kSector = 512;
constexpr double kShares[] = {0.1, 0.5, 0.9};

/// How much of what was not flushed is there.
enum class Luck { kNothing, kAll, kPrefix, kAny, kCount };
Luck draw_luck(Chance& chance) {
  return static_cast<Luck>(chance.below(static_cast<size_t>(Luck::kCount)));
}

void apply_data(const Operation& operation, std::string* content) {
  const size_t offset = static_cast<size_t>(operation.offset);
  if (operation.kind == Kind::kResize) {
    content->resize(offset);
    return;
  }
  if (content->size() < offset + operation.data.size()) {
    content->resize(offset + operation.data.size());
  }
  content->replace(offset, operation.data.size(), operation.data);
}

std::string noise(size_t bytes, Chance& chance) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(chance.bits());
  return text;
}

/// A file between the memory and the disk: sectors and the size get there when chance wants it.
class WriteBack {
 public:
  WriteBack(const std::string& durable, Chance& chance)
      : cache_(durable), disk_(durable), chance_(chance), share_(kShares[chance.below(3)]) {}

  void apply(const Operation& operation) {
    apply_data(operation, &cache_);
    if (operation.kind == Kind::kResize) {
      if (chance_.under(share_)) set_size(cache_.size());
      return;
    }
    const size_t begin = static_cast<size_t>(operation.offset);
    for (size_t at = begin / kSector * kSector; at < begin + operation.data.size(); at += kSector) {
      if (chance_.under(share_)) {
        flush(at);
      } else {
        dirty_.insert(at);
      }
    }
  }

  std::string finish() {
    const double share = kShares[chance_.below(3)];
    for (const size_t at : dirty_) {
      if (chance_.under(share)) flush(at);
    }
    if (chance_.under(0.3)) set_size(cache_.size());
    return std::move(disk_);
  }

 private:
  void set_size(size_t size) {
    const size_t old = disk_.size();
    disk_.resize(size);
    if (size > old && chance_.under(0.5))
      disk_.replace(old, size - old, noise(size - old, chance_));
  }
  void flush(size_t at) {
    if (at >= cache_.size()) return;
    const size_t bytes = std::min(kSector, cache_.size() - at);
    if (disk_.size() < at + bytes) set_size(at + bytes);
    disk_.replace(at, bytes, cache_, at, bytes);
  }

  std::string cache_, disk_;
  Chance& chance_;
  double share_;
  std::set<size_t> dirty_;
};

}  // namespace

Disk::Disk(const Tree& start) {
  std::map<std::string, int> nodes = {{"", 0}};
  for (const auto& [path, content] : start) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash);
    const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    const int node = static_cast<int>(nodes.size());
    durable_[{nodes.at(folder), name}] = nodes[path] = node;
    if (content) files_[node] = {*content, *content, {}};
  }
}

void Disk::apply(const Operation& operation, Entries* entries) {
  const std::pair name(operation.folder, operation.name);
  if (operation.kind == Kind::kUnlink) {
    entries->erase(name);
  } else if (operation.kind == Kind::kRename) {
    (*entries)[{operation.to_folder, operation.to_name}] = operation.node;
    const auto source = entries->find(name);
    if (source != entries->end() && source->second == operation.node) entries->erase(source);
  } else {
    (*entries)[name] = operation.node;
  }
}

void Disk::sync_folder(int folder) {
  Pending rest;
  for (const Operation* operation : pending_) {
    const bool renames = operation->kind == Kind::kRename;
    if ((renames ? operation->to_folder : operation->folder) != folder) {
      rest.push_back(operation);
      continue;
    }
    if (renames) {
      // It is whole: what was done to the old name before it is durable with it.
      std::erase_if(rest, [&](const Operation* other) {
        const bool same = other->kind != Kind::kRename && other->folder == operation->folder &&
                          other->name == operation->name;
        if (same) apply(*other, &durable_);
        return same;
      });
    }
    apply(*operation, &durable_);
  }
  pending_ = std::move(rest);
}

void Disk::advance(const Operation& operation) {
  switch (operation.kind) {
    case Kind::kCreate: files_[operation.node]; [[fallthrough]];
    case Kind::kMakeFolder:
    case Kind::kRename:
    case Kind::kUnlink: pending_.push_back(&operation); break;
    case Kind::kWrite:
    case Kind::kResize: {
      File& file = files_.at(operation.node);
      apply_data(operation, &file.live);
      file.pending.push_back(&operation);
      break;
    }
    case Kind::kSyncFile: {
      File& file = files_.at(operation.node);
      if (!file.pending.empty()) file.durable = file.live;
      file.pending.clear();
      break;
    }
    case Kind::kSyncFolder: sync_folder(operation.node); break;
    case Kind::kMark: break;
  }
}

Disk::Entries Disk::surviving_entries(Chance& chance) const {
  const Luck luck = draw_luck(chance);
  const double share = kShares[chance.below(3)];
  const size_t prefix = chance.below(pending_.size() + 1);
  Entries entries = durable_;
  for (size_t i = 0; i < pending_.size(); ++i) {
    const bool there = luck == Luck::kAll || (luck == Luck::kPrefix && i < prefix) ||
                       (luck == Luck::kAny && chance.under(share));
    if (there) apply(*pending_[i], &entries);
  }
  return entries;
}

std::string Disk::surviving_content(const File& file, Chance& chance) {
  if (file.pending.empty()) return file.durable;
  const Luck luck = draw_luck(chance);
  if (luck == Luck::kNothing) return file.durable;
  if (luck == Luck::kAll) return file.live;
  if (luck == Luck::kPrefix) {
    std::string content = file.durable;
    const size_t prefix = chance.below(file.pending.size() + 1);
    for (size_t i = 0; i < prefix; ++i) apply_data(*file.pending[i], &content);
    return content;
  }
  WriteBack writes(file.durable, chance);
  for (const Operation* operation : file.pending) writes.apply(*operation);
  return writes.finish();
}

void Disk::collect(const Entries& entries, int folder, const std::string& path, Chance* chance,
                   Tree* tree) const {
  for (auto at = entries.lower_bound({folder, ""});
       at != entries.end() && at->first.first == folder; ++at) {
    const std::string name = path + at->first.second;
    const auto file = files_.find(at->second);
    if (file == files_.end()) {
      (*tree)[name];
      collect(entries, at->second, name + "/", chance, tree);
    } else if (chance == nullptr) {
      (*tree)[name] = file->second.live;
    } else if (name.ends_with("-shm")) {
      (*tree)[name] = noise(file->second.live.size(), *chance);
    } else {
      (*tree)[name] = surviving_content(file->second, *chance);
    }
  }
}

Tree Disk::whole() const {
  Entries entries = durable_;
  for (const Operation* operation : pending_) apply(*operation, &entries);
  Tree tree;
  collect(entries, 0, "", nullptr, &tree);
  return tree;
}

Tree Disk::after_power_loss(Chance& chance) const {
  const Entries entries = surviving_entries(chance);
  Tree tree;
  collect(entries, 0, "", &chance, &tree);
  return tree;
}

}  // namespace tarn::power

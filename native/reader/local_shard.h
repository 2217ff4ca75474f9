// The exact fallback: rows of one layer, read from the safetensors shard on this node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reader/lookup_plan.h"

namespace engram_remote {

// Where one plane of the table lies.
struct PlaneFile {
    std::string path;
    std::uint64_t offset = 0;  // of row 0
};

struct ShardFiles {
    PlaneFile weight;
    PlaneFile scale;
    std::uint64_t rows = 0;  // of the whole table
};

// Not thread-safe: one read at a time.
class LocalShard {
  public:
    // Throws std::runtime_error: a file is missing or ends too early. Threads start with the first read that needs
    // them. `direct`: try O_DIRECT, so that a burst of random rows does not push the model out of the page cache.
    LocalShard(const ShardFiles& files, unsigned threads, bool direct = true);
    ~LocalShard();
    LocalShard(const LocalShard&) = delete;
    LocalShard& operator=(const LocalShard&) = delete;

    // Reads row ids[i] to place i. Throws std::runtime_error naming the file; then some rows may be missing.
    void read(std::span<const std::uint32_t> ids, RowPlanes out);

    // "O_DIRECT", or "buffered (O_DIRECT refused by PATH: REASON)".
    [[nodiscard]] const std::string& mode() const noexcept;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace engram_remote

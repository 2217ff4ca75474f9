// One layer's table in RAM: two planes, byte for byte as in the shard, verified before anyone sees it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "table/gather.h"
#include "table/manifest.h"
#include "table/memory.h"
#include "table/segments.h"

namespace engram {

struct LoadOptions {
    ReadOptions read;
    bool huge_pages = true;
};

class Table {
  public:
    [[nodiscard]] std::uint32_t layer() const noexcept { return layer_; }
    [[nodiscard]] std::uint64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return weights_.size() + scales_.size(); }
    [[nodiscard]] const Digest& identity() const noexcept { return identity_; }
    [[nodiscard]] Planes planes() const noexcept { return {weights_.data(), scales_.data()}; }
    [[nodiscard]] Residency residency() const;

    // Fault injection and tests: flips one bit of the row's first weight byte, behind the verification's back.
    void corrupt_row(std::uint64_t row);

  private:
    friend Table load_table(const Manifest&, std::uint32_t, const std::filesystem::path&, const LoadOptions&);

    std::uint32_t layer_ = 0;
    std::uint64_t rows_ = 0;
    Digest identity_{};
    Mapping weights_;
    Mapping scales_;
};

// Checks headers, reads both planes into memory, verifies every segment and seals the memory. Throws a TableError.
[[nodiscard]] Table load_table(const Manifest& manifest, std::uint32_t layer, const std::filesystem::path& model_dir,
                               const LoadOptions& options);

}  // namespace engram

// Where each head's rows lie in a layer's table, and which rows a rank owns. Pure; mirrors the serve's own layout.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace engram {

inline constexpr std::uint32_t kWeightBytes = 256;
inline constexpr std::uint32_t kScaleBytes = 8;

struct Geometry {
    std::vector<std::uint32_t> layer_ids;
    std::vector<std::uint64_t> num_embeddings;  // rows of each layer, same order
    std::uint32_t max_ngram_size = 4;
    std::uint32_t n_heads = 8;
    std::uint32_t head_dim = kWeightBytes;
    std::uint64_t vocab_size = 0;
    std::uint32_t pad_token_id = 0;
    std::uint64_t compressed_vocab_size = 0;
};

// [start, end), row ids global within one layer.
struct RowRange {
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    bool operator==(const RowRange&) const = default;
};

class LayoutError : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

[[nodiscard]] bool is_prime(std::uint64_t n) noexcept;

// The row count of every head (hash column, order-major) of every layer, in the order of layer_ids. Each n-gram order
// starts its search again at vocab_size, and no prime is handed out twice, across layers as well.
[[nodiscard]] std::vector<std::vector<std::uint64_t>> head_sizes(const Geometry& geometry);

// The range of each of `ranks` ranks: whole heads, ceil(heads / ranks) of them each.
[[nodiscard]] std::vector<RowRange> shard_ranges(std::span<const std::uint64_t> sizes, std::uint32_t ranks);

}  // namespace engram

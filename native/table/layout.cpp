#include "table/layout.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_set>

namespace engram {
namespace {

// Far above any real model; keeps a hostile manifest from starting an endless search.
constexpr std::uint64_t kMaxVocab = std::uint64_t{1} << 32;
constexpr std::uint32_t kMaxColumns = 1024;

}  // namespace

bool is_prime(std::uint64_t n) noexcept {
    if (n < 2) return false;
    if (n < 4) return true;
    if (n % 2 == 0 || n % 3 == 0) return false;
    for (std::uint64_t d = 5; d <= n / d; d += 6) {
        if (n % d == 0 || n % (d + 2) == 0) return false;
    }
    return true;
}

std::vector<std::vector<std::uint64_t>> head_sizes(const Geometry& geometry) {
    if (geometry.max_ngram_size < 2 || geometry.n_heads == 0) {
        throw LayoutError("max_ngram_size must be at least 2 and n_heads at least 1");
    }
    if (geometry.max_ngram_size > kMaxColumns || geometry.n_heads > kMaxColumns ||
        (geometry.max_ngram_size - 1) * geometry.n_heads > kMaxColumns) {
        throw LayoutError("more than " + std::to_string(kMaxColumns) + " hash columns");
    }
    if (geometry.vocab_size < 2 || geometry.vocab_size > kMaxVocab) {
        throw LayoutError("vocab_size must be in [2, " + std::to_string(kMaxVocab) + "]");
    }
    std::unordered_set<std::uint64_t> seen;
    std::vector<std::vector<std::uint64_t>> layers;
    for (std::size_t layer = 0; layer < geometry.layer_ids.size(); ++layer) {
        auto& sizes = layers.emplace_back();
        for (std::uint32_t order = 2; order <= geometry.max_ngram_size; ++order) {
            std::uint64_t current = geometry.vocab_size - 1;
            for (std::uint32_t head = 0; head < geometry.n_heads; ++head) {
                do {
                    ++current;
                } while (seen.contains(current) || !is_prime(current));
                seen.insert(current);
                sizes.push_back(current);
            }
        }
    }
    return layers;
}

std::vector<RowRange> shard_ranges(std::span<const std::uint64_t> sizes, std::uint32_t ranks) {
    if (ranks == 0) throw LayoutError("there must be at least one rank");
    const std::size_t part = (sizes.size() + ranks - 1) / ranks;
    std::vector<RowRange> ranges;
    std::uint64_t start = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::size_t first = std::min(rank * part, sizes.size());
        const std::size_t last = std::min(first + part, sizes.size());
        if (first == last) {
            throw LayoutError("Engram sharding leaves ranks without hash heads: " + std::to_string(sizes.size()) +
                              " heads over " + std::to_string(ranks) + " ranks");
        }
        const auto heads = sizes.subspan(first, last - first);
        const std::uint64_t end = std::accumulate(heads.begin(), heads.end(), start);
        ranges.push_back({start, end});
        start = end;
    }
    return ranges;
}

}  // namespace engram

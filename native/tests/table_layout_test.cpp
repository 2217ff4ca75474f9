#include <doctest/doctest.h>

#include <numeric>

#include "table/layout.h"

namespace {

engram::Geometry real_geometry() {
    engram::Geometry geometry;
    geometry.layer_ids = {1, 14};
    geometry.vocab_size = 16'000'000;
    return geometry;
}

std::uint64_t sum(const std::vector<std::uint64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

// The borders between ranks, without the first 0 and the last row.
std::vector<std::uint64_t> borders(const std::vector<std::uint64_t>& sizes, std::uint32_t ranks) {
    std::vector<std::uint64_t> result;
    for (const engram::RowRange& range : engram::shard_ranges(sizes, ranks)) result.push_back(range.end);
    result.pop_back();
    return result;
}

using Numbers = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("layout: the real model's head sizes") {
    const auto sizes = engram::head_sizes(real_geometry());
    REQUIRE(sizes.size() == 2);
    CHECK(sizes[0].size() == 24);
    CHECK(sum(sizes[0]) == 384006168);
    CHECK(sum(sizes[1]) == 384016682);
    CHECK(sizes[0].front() == 16000057);
    CHECK(sizes[0].back() == 16000463);
    CHECK(sizes[1].front() == 16000477);
    CHECK(sizes[1].back() == 16000889);
}

TEST_CASE("layout: ranks split at head boundaries, not in halves") {
    const auto sizes = engram::head_sizes(real_geometry());
    CHECK(borders(sizes[0], 1).empty());
    CHECK(borders(sizes[0], 2) == Numbers{192001740});
    CHECK(borders(sizes[1], 2) == Numbers{192007016});
    CHECK(borders(sizes[0], 3) == Numbers{128000880, 256002934});
    CHECK(borders(sizes[1], 3) == Numbers{128004290, 256009984});
    CHECK(borders(sizes[0], 4) == Numbers{96000564, 192001740, 288003654});
    CHECK(borders(sizes[1], 4) == Numbers{96003054, 192007016, 288011564});
}

TEST_CASE("layout: ranges of any rank count are contiguous and cover the table") {
    const auto sizes = engram::head_sizes(real_geometry());
    for (const std::uint32_t ranks : {1U, 2U, 3U, 4U, 6U, 8U, 12U, 24U}) {
        std::uint64_t at = 0;
        for (const engram::RowRange& range : engram::shard_ranges(sizes[0], ranks)) {
            CHECK(range.start == at);
            CHECK(range.end > range.start);
            at = range.end;
        }
        CHECK(at == 384006168);
    }
}

TEST_CASE("layout: a rank count that leaves ranks without heads is refused") {
    const auto sizes = engram::head_sizes(real_geometry());
    CHECK_THROWS_WITH_AS(static_cast<void>(engram::shard_ranges(sizes[0], 25)),
                         "Engram sharding leaves ranks without hash heads: 24 heads over 25 ranks",
                         engram::LayoutError);
    // ceil(24 / 10) = 3 heads a rank are used up after eight ranks.
    CHECK_THROWS_AS(static_cast<void>(engram::shard_ranges(sizes[0], 10)), engram::LayoutError);
    CHECK_THROWS_AS(static_cast<void>(engram::shard_ranges(sizes[0], 0)), engram::LayoutError);
}

TEST_CASE("layout: is_prime agrees with a sieve") {
    std::vector<bool> composite(2000, false);
    for (std::size_t n = 2; n < composite.size(); ++n) {
        CHECK(engram::is_prime(n) == !composite[n]);
        for (std::size_t multiple = 2 * n; multiple < composite.size(); multiple += n) composite[multiple] = true;
    }
    CHECK_FALSE(engram::is_prime(0));
    CHECK_FALSE(engram::is_prime(1));
}

TEST_CASE("layout: hostile geometry is refused instead of searched for ever") {
    engram::Geometry geometry = real_geometry();
    geometry.vocab_size = std::uint64_t{1} << 60;
    CHECK_THROWS_AS(static_cast<void>(engram::head_sizes(geometry)), engram::LayoutError);
    geometry = real_geometry();
    geometry.max_ngram_size = 0xffffffff;
    geometry.n_heads = 0xffffffff;
    CHECK_THROWS_AS(static_cast<void>(engram::head_sizes(geometry)), engram::LayoutError);
    geometry.max_ngram_size = 1;
    CHECK_THROWS_AS(static_cast<void>(engram::head_sizes(geometry)), engram::LayoutError);
}

#include <doctest/doctest.h>

#include <random>
#include <stdexcept>

#include "reader/local_shard.h"
#include "reader/lookup_plan.h"
#include "tests/reader_fixture.h"

namespace {

using engram_remote::LocalShard;
using engram_remote::LookupPlan;
using engram_remote::RowPlanes;
using reader_test::kRows;
using reader_test::Shard;

// Reads distinct rows as a server or shard would, into the front of the planes.
void fill(std::span<const std::uint32_t> unique, RowPlanes planes) {
    for (std::size_t k = 0; k < unique.size(); ++k) {
        for (std::size_t at = 0; at < ofl::kWeightBytes; ++at) {
            planes.weights[k * ofl::kWeightBytes + at] = transport_test::weight_of(unique[k], at);
        }
        for (std::size_t at = 0; at < ofl::kScaleBytes; ++at) {
            planes.scales[k * ofl::kScaleBytes + at] = transport_test::scale_of(unique[k], at);
        }
    }
}

}  // namespace

TEST_CASE("reader plan: any lookup expands to what was asked, in place and from another buffer") {
    LookupPlan plan(0, kRows, 512);
    transport_test::Planes one(512);
    transport_test::Planes other(512);
    const RowPlanes from{one.weights.data(), one.scales.data()};
    const RowPlanes to{other.weights.data(), other.scales.data()};
    std::mt19937 random(7);
    for (std::uint32_t round = 0; round < 300; ++round) {
        auto wanted = reader_test::ids(random() % 513, round);
        // Sometimes few rows, so that most are duplicates.
        if (round % 3 == 0) {
            for (auto& id : wanted) id = id < 0 ? id : id % 7;
        }
        plan.build(std::span<const std::int64_t>(wanted));
        CHECK(plan.requested() == wanted.size());
        fill(plan.unique(), from);
        plan.expand(from, to);
        REQUIRE(reader_test::exact(to, wanted));
        plan.expand(from, from);
        REQUIRE(reader_test::exact(from, wanted));
    }
}

TEST_CASE("reader plan: distinct rows once, in the order of their first use; dead ids never") {
    LookupPlan plan(100, 200, 16);
    const std::vector<std::int32_t> wanted{150, -1, 120, 150, 199, 120, 100, -1};
    plan.build(std::span<const std::int32_t>(wanted));
    CHECK(std::vector<std::uint32_t>(plan.unique().begin(), plan.unique().end()) ==
          std::vector<std::uint32_t>{150, 120, 199, 100});
}

TEST_CASE("reader plan: ids that cannot be asked for leave nothing behind") {
    LookupPlan plan(100, 200, 4);
    for (const std::int64_t bad : {std::int64_t{99}, std::int64_t{200}, std::int64_t{-2}, std::int64_t{1} << 40}) {
        const std::vector<std::int64_t> wanted{150, bad};
        CHECK_THROWS_AS(plan.build(std::span<const std::int64_t>(wanted)), std::out_of_range);
        CHECK(plan.requested() == 0);
        CHECK(plan.unique().empty());
    }
    const std::vector<std::int64_t> many(5, 150);
    CHECK_THROWS_AS(plan.build(std::span<const std::int64_t>(many)), std::invalid_argument);
}

TEST_CASE("reader shard: every row exact, direct and buffered, few and many") {
    for (const std::string& directory : {std::string(), std::string("/dev/shm")}) {
        const Shard shard(directory);
        for (const bool direct : {true, false}) {
            LocalShard local(shard.files(), 8, direct);
            INFO(local.mode());
            transport_test::Planes planes(kRows);
            const RowPlanes out{planes.weights.data(), planes.scales.data()};
            std::mt19937 random(3);
            for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{300}, std::size_t{kRows}}) {
                std::vector<std::uint32_t> ids(kRows);
                for (std::uint32_t i = 0; i < kRows; ++i) ids[i] = i;
                std::shuffle(ids.begin(), ids.end(), random);
                ids.resize(count);
                if (count > 1) ids[1] = kRows - 1;
                planes.wipe();
                local.read(ids, out);
                CHECK(reader_test::exact(out, {ids.begin(), ids.end()}));
            }
        }
    }
}

TEST_CASE("reader shard: a file that ends early is an error, never zeros") {
    const Shard shard;
    transport_test::Planes planes(8);
    const RowPlanes out{planes.weights.data(), planes.scales.data()};
    LocalShard local(shard.files(), 2);
    std::filesystem::resize_file(shard.path, Shard::kWeightAt + 40 * ofl::kWeightBytes);
    const std::vector<std::uint32_t> ids{5, 4000};
    CHECK_THROWS_WITH_AS(local.read(ids, out), doctest::Contains(shard.path.c_str()), std::runtime_error);
    CHECK_THROWS_WITH_AS(LocalShard(shard.files(), 2), doctest::Contains("the plane ends at"), std::runtime_error);
    std::filesystem::remove(shard.path);
    CHECK_THROWS_WITH_AS(LocalShard(shard.files(), 2), doctest::Contains("No such file"), std::runtime_error);
}

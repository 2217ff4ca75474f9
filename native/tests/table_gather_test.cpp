#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "table/gather.h"
#include "table/layout.h"

namespace {

constexpr std::size_t kRows = 5000;

struct Rows {
    std::vector<std::byte> weights = std::vector<std::byte>(kRows * engram::kWeightBytes);
    std::vector<std::byte> scales = std::vector<std::byte>(kRows * engram::kScaleBytes);

    Rows() {
        std::mt19937_64 random(7);
        for (std::byte& byte : weights) byte = static_cast<std::byte>(random());
        for (std::byte& byte : scales) byte = static_cast<std::byte>(random());
    }
    [[nodiscard]] engram::Planes planes() const { return {weights.data(), scales.data()}; }
};

// What the gather must equal: one memcpy a row.
bool matches(const Rows& rows, const std::vector<std::uint32_t>& ids, const std::vector<std::byte>& weights,
             const std::vector<std::byte>& scales) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (std::memcmp(&weights[i * 256], &rows.weights[std::size_t{ids[i]} * 256], 256) != 0) return false;
        if (std::memcmp(&scales[i * 8], &rows.scales[std::size_t{ids[i]} * 8], 8) != 0) return false;
    }
    return true;
}

std::vector<std::uint32_t> random_ids(std::mt19937_64& random, std::size_t count) {
    std::vector<std::uint32_t> ids(count);
    for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(random() % kRows);
    // The ends, and repeats, are always among them.
    ids.front() = 0;
    ids.back() = kRows - 1;
    ids[count / 2] = kRows - 1;
    return ids;
}

}  // namespace

TEST_CASE("gather: equals a copy of each row, for 1 to 70000 ids, with 1 and with 4 threads") {
    const Rows rows;
    std::mt19937_64 random(11);
    for (const unsigned threads : {1U, 4U}) {
        engram::GatherPool pool(threads);
        for (const std::size_t count : {1UL, 2UL, 15UL, 16UL, 31UL, 32UL, 33UL, 255UL, 256UL, 257UL, 288UL, 1023UL,
                                        1024UL, 1025UL, 2048UL, 49152UL, 49153UL, 70000UL}) {
            const auto ids = random_ids(random, count);
            // One row more than asked for: it must stay as it was.
            std::vector<std::byte> weights((count + 1) * 256, std::byte{0xee});
            std::vector<std::byte> scales((count + 1) * 8, std::byte{0xee});
            pool.gather(rows.planes(), ids, weights.data(), scales.data());
            CHECK_MESSAGE(matches(rows, ids, weights, scales), count);
            CHECK(weights[count * 256] == std::byte{0xee});
            CHECK(scales[count * 8] == std::byte{0xee});
        }
    }
}

TEST_CASE("gather: no ids, nothing written") {
    const Rows rows;
    engram::GatherPool pool(4, 1);
    pool.gather(rows.planes(), {}, nullptr, nullptr);
    engram::gather_rows(rows.planes(), {}, nullptr, nullptr);
}

TEST_CASE("gather: many callers share a pool") {
    const Rows rows;
    engram::GatherPool pool(3, 1);
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (unsigned caller = 0; caller < 6; ++caller) {
        callers.emplace_back([&, caller] {
            std::mt19937_64 random(caller);
            for (int round = 0; round < 150; ++round) {
                const auto ids = random_ids(random, 1 + random() % 3000);
                std::vector<std::byte> weights(ids.size() * 256);
                std::vector<std::byte> scales(ids.size() * 8);
                pool.gather(rows.planes(), ids, weights.data(), scales.data());
                if (!matches(rows, ids, weights, scales)) ++wrong;
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);
}

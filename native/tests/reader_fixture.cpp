#include "tests/reader_fixture.h"

#include <random>

namespace reader_test {

std::vector<std::int64_t> ids(std::size_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<std::int64_t> any(0, static_cast<std::int64_t>(kRows) - 1);
    std::vector<std::int64_t> result(count);
    for (std::size_t i = 0; i < count; ++i) {
        result[i] = any(random);
        if (i % 17 == 3) result[i] = engram_remote::kDeadId;
        if (i % 5 == 4) result[i] = result[i / 2];
    }
    return result;
}

bool exact(engram_remote::RowPlanes planes, const std::vector<std::int64_t>& ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool dead = ids[i] < 0;
        const auto id = static_cast<std::uint32_t>(ids[i]);
        for (std::size_t at = 0; at < ofl::kWeightBytes; ++at) {
            const std::byte wanted = dead ? std::byte{0} : transport_test::weight_of(id, at);
            if (planes.weights[i * ofl::kWeightBytes + at] != wanted) return false;
        }
        for (std::size_t at = 0; at < ofl::kScaleBytes; ++at) {
            const std::byte wanted = dead ? std::byte{0} : transport_test::scale_of(id, at);
            if (planes.scales[i * ofl::kScaleBytes + at] != wanted) return false;
        }
    }
    return true;
}

bool looks_up(engram_remote::RemoteTable& table, std::uint32_t seed, std::size_t count) {
    const auto wanted = ids(count, seed);
    table.enqueue(wanted);
    table.wait();
    return exact(table.staging(), wanted);
}

}  // namespace reader_test

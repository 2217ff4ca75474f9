// A local shard whose rows are those of FakeRows, and a reader's options for it.
#pragma once

#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "reader/remote_table.h"
#include "tests/table_fixture.h"
#include "tests/transport_fixture.h"

namespace reader_test {

inline constexpr std::uint64_t kRows = 6000;

struct Shard {
    // Planes start in the middle of a block, as behind a safetensors header.
    explicit Shard(const std::string& directory = {})
        : path((directory.empty() ? dir.path() : std::filesystem::path(directory)) / "shard-of-the-reader-tests") {
        std::ofstream file(path, std::ios::binary);
        const std::string head(kWeightAt, 'h');
        file << head;
        for (std::uint32_t id = 0; id < kRows; ++id) {
            for (std::size_t at = 0; at < ofl::kWeightBytes; ++at) {
                file.put(static_cast<char>(transport_test::weight_of(id, at)));
            }
        }
        for (std::uint32_t id = 0; id < kRows; ++id) {
            for (std::size_t at = 0; at < ofl::kScaleBytes; ++at) {
                file.put(static_cast<char>(transport_test::scale_of(id, at)));
            }
        }
    }
    ~Shard() { std::filesystem::remove(path); }
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    [[nodiscard]] engram_remote::ShardFiles files() const {
        return {{path.string(), kWeightAt}, {path.string(), kWeightAt + kRows * ofl::kWeightBytes}, kRows};
    }

    static constexpr std::uint64_t kWeightAt = 8 + 333;
    fixture::TempDir dir;
    std::filesystem::path path;
};

struct Lines {
    void add(const std::string& line) {
        const std::lock_guard lock(mutex);
        all += line + "\n";
    }
    [[nodiscard]] bool has(const std::string& part) const {
        const std::lock_guard lock(mutex);
        return all.find(part) != std::string::npos;
    }
    mutable std::mutex mutex;
    std::string all;
};

inline engram_remote::Options options(const Shard& shard, const std::string& address, Lines& lines) {
    engram_remote::Options result;
    result.endpoint = transport_test::endpoint_of(address);
    result.layer = transport_test::kLayer;
    result.end = kRows;
    result.identity = transport_test::identity();
    result.max_rows = 2048;
    result.shard = shard.files();
    result.timeout = engram_remote::milliseconds(2000);
    result.retry = engram_remote::milliseconds(50);
    result.log_every = engram_remote::seconds(0);
    result.read_threads = 4;
    result.log = [&lines](const std::string& line) { lines.add(line); };
    return result;
}

// Random rows with duplicates and dead ids.
std::vector<std::int64_t> ids(std::size_t count, std::uint32_t seed);
// Whether requested row i is in place i.
bool exact(engram_remote::RowPlanes planes, const std::vector<std::int64_t>& ids);
// One lookup, compared.
bool looks_up(engram_remote::RemoteTable& table, std::uint32_t seed, std::size_t count = 700);

}  // namespace reader_test

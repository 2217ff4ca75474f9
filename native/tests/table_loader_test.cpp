#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <set>

#include "table/error.h"
#include "table/planes.h"
#include "table/table.h"
#include "tests/table_fixture.h"

namespace {

using engram::Table;
using engram::VerifyError;
using fixture::Checkpoint;

Table load(const Checkpoint& checkpoint, std::uint32_t layer, engram::LoadOptions options = {}) {
    options.read.threads = 4;
    return engram::load_table(checkpoint.manifest(), layer, checkpoint.dir(), options);
}

std::string complaint(const Checkpoint& checkpoint, std::uint32_t layer) {
    try {
        static_cast<void>(load(checkpoint, layer));
    } catch (const VerifyError& error) {
        return error.what();
    }
    return "accepted";
}

void check_rows(const Table& table, const fixture::LayerData& data) {
    REQUIRE(table.rows() == data.rows);
    CHECK(std::memcmp(table.planes().weights, data.weights.data(), data.weights.size()) == 0);
    CHECK(std::memcmp(table.planes().scales, data.scales.data(), data.scales.size()) == 0);
}

}  // namespace

TEST_CASE("loader: planes are the shard's, byte for byte, with and without O_DIRECT and huge pages") {
    // Segment sizes that are, and are not, multiples of a page, of a row and of a read.
    for (const std::uint64_t segment : {std::uint64_t{65536}, std::uint64_t{10007}, std::uint64_t{3} << 20}) {
        Checkpoint checkpoint(1, segment);
        for (const bool direct : {true, false}) {
            engram::LoadOptions options;
            options.read.direct_io = direct;
            options.huge_pages = direct;
            for (const std::uint32_t layer : {1U, 14U})
                check_rows(load(checkpoint, layer, options), checkpoint.layer(layer));
        }
    }
}

TEST_CASE("loader: packed files and shards give the same identity and the same rows") {
    for (const std::uint64_t segment : {std::uint64_t{65536}, std::uint64_t{10007}}) {
        Checkpoint checkpoint(1, segment);
        const Table from_shard = load(checkpoint, 14);
        checkpoint.pack();
        CHECK_FALSE(checkpoint.manifest().find(14)->weight.tensor.has_value());
        const Table from_packed = load(checkpoint, 14);
        CHECK(from_packed.identity() == from_shard.identity());
        check_rows(from_packed, checkpoint.layer(14));
    }
}

TEST_CASE("loader: progress grows to the whole table") {
    Checkpoint checkpoint;
    std::atomic<std::uint64_t> most{0};
    std::atomic<int> calls{0};
    engram::LoadOptions options;
    options.read.progress = [&](std::uint64_t done, std::uint64_t total) {
        CHECK(total == checkpoint.layer(1).rows * 264);
        CHECK(done <= total);
        std::uint64_t seen = most.load();
        while (seen < done && !most.compare_exchange_weak(seen, done)) {
        }
        ++calls;
    };
    static_cast<void>(load(checkpoint, 1, options));
    CHECK(most == checkpoint.layer(1).rows * 264);
    const auto manifest = checkpoint.manifest();
    CHECK(calls ==
          static_cast<int>(manifest.layers[0].weight.segments.size() + manifest.layers[0].scale.segments.size()));
}

TEST_CASE("loader: a flipped byte is found wherever it is, and named") {
    Checkpoint checkpoint;
    const std::string good = fixture::read_file(checkpoint.shard_path(14));
    const fixture::LayerData& data = checkpoint.layer(14);
    struct Case {
        const char* plane;
        std::uint64_t at;
    };
    const Case cases[] = {{"weight", 0},
                          {"weight", 65535},
                          {"weight", 65536},
                          {"weight", data.weights.size() / 2},
                          {"weight", data.weights.size() - 1},
                          {"scale", 0},
                          {"scale", data.scales.size() - 1}};
    for (const Case& each : cases) {
        fixture::write_file(checkpoint.shard_path(14), good);
        fixture::flip_byte(checkpoint.shard_path(14), checkpoint.offset(14, each.plane) + each.at);
        const std::string message = complaint(checkpoint, 14);
        const std::string wanted =
            std::string("layer 14 ") + each.plane + " segment " + std::to_string(each.at / 65536) + " of ";
        CHECK_MESSAGE(message.find(wanted) == 0, message);
        CHECK(message.find("in " + checkpoint.shard_path(14).string() + " does not match the manifest") !=
              std::string::npos);
        CHECK(message.find('\n') == std::string::npos);
    }
    // The other layer's shard is as it was.
    CHECK(complaint(checkpoint, 1) == "accepted");
}

TEST_CASE("loader: of several flipped bytes the first is named, whatever the threads do") {
    Checkpoint checkpoint(1, 4096);
    const auto at = [&](std::uint64_t segment) { return checkpoint.offset(1, "weight") + segment * 4096 + 17; };
    for (const std::uint64_t segment : {40, 41, 42, 43, 60}) fixture::flip_byte(checkpoint.shard_path(1), at(segment));
    fixture::flip_byte(checkpoint.shard_path(1), checkpoint.offset(1, "scale"));
    for (int round = 0; round < 20; ++round) {
        const std::string message = complaint(checkpoint, 1);
        CHECK_MESSAGE(message.find("layer 1 weight segment 40 of ") == 0, message);
    }
}

TEST_CASE("loader: damaged shards are named with what was expected and found") {
    Checkpoint checkpoint;
    const std::string path = checkpoint.shard_path(1).string();
    const std::string good = fixture::read_file(path);
    const fixture::LayerData data = checkpoint.layer(1);
    const std::string rows = std::to_string(data.rows);
    const std::string tensor = path + ": tensor layers.1.engram.embed.weight";

    fixture::write_file(path, good.substr(0, good.size() - 1));
    CHECK(complaint(checkpoint, 1).find(path + ": tensor layers.1.engram.embed.scale.data_offsets: truncated") == 0);
    fixture::write_file(path, good.substr(0, 100));
    CHECK(complaint(checkpoint, 1).find(path + ": truncated inside its header") == 0);
    checkpoint.write_shard(data, "F8_E5M2", {data.rows, 256});
    CHECK(complaint(checkpoint, 1) == tensor + ": dtype: expected F8_E4M3, found F8_E5M2");
    checkpoint.write_shard(data, "F8_E4M3", {data.rows * 2, 128});
    CHECK(complaint(checkpoint, 1) ==
          tensor + ": shape: expected [" + rows + ", 256], found [" + std::to_string(data.rows * 2) + ", 128]");
    checkpoint.write_shard(data, "F8_E4M3", {data.rows, 256});
    CHECK(complaint(checkpoint, 1) == "accepted");
    std::filesystem::remove(path);
    CHECK(complaint(checkpoint, 1) == path + ": cannot be opened: No such file or directory");
}

TEST_CASE("loader: a plane that lies elsewhere than the manifest says is refused") {
    Checkpoint checkpoint;
    checkpoint.json(1)["scale"]["offset"] = 4242;
    checkpoint.write_manifest();
    CHECK(
        complaint(checkpoint, 1).find("tensor layers.1.engram.embed.scale: offset: expected 4242 (manifest), found ") !=
        std::string::npos);
}

TEST_CASE("loader: the manifest of another checkpoint of the same shape is refused") {
    Checkpoint checkpoint(1);
    Checkpoint other(2);
    fixture::write_file(checkpoint.manifest_path(), fixture::read_file(other.manifest_path()));
    CHECK(complaint(checkpoint, 1).find("layer 1 weight segment 0 of ") == 0);
}

TEST_CASE("loader: a packed file of another table is refused by its header") {
    Checkpoint checkpoint(1);
    Checkpoint other(2);
    checkpoint.pack();
    other.pack();
    std::filesystem::copy_file(other.dir() / "layer-1.dsv41pack", checkpoint.dir() / "layer-1.dsv41pack",
                               std::filesystem::copy_options::overwrite_existing);
    CHECK(complaint(checkpoint, 1).find("identity: expected ") != std::string::npos);
    std::filesystem::copy_file(checkpoint.dir() / "layer-14.dsv41pack", checkpoint.dir() / "layer-1.dsv41pack",
                               std::filesystem::copy_options::overwrite_existing);
    CHECK(complaint(checkpoint, 1).find("layer: expected 1 (manifest), found 14") != std::string::npos);
}

TEST_CASE("loader: stops when asked") {
    Checkpoint checkpoint(1, 4096);
    std::stop_source source;
    std::atomic<int> calls{0};
    engram::LoadOptions options;
    options.read.stop = source.get_token();
    options.read.progress = [&](std::uint64_t, std::uint64_t) {
        if (++calls == 3) source.request_stop();
    };
    CHECK_THROWS_AS(static_cast<void>(load(checkpoint, 1, options)), engram::Cancelled);
    CHECK(calls < 20);
}

TEST_CASE("loader: a layer that the manifest lacks, and a model directory that is not there") {
    Checkpoint checkpoint;
    CHECK_THROWS_AS(static_cast<void>(load(checkpoint, 2)), engram::ManifestError);
    CHECK_THROWS_AS(static_cast<void>(engram::load_table(checkpoint.manifest(), 1, "/nonexistent", {})), VerifyError);
}

TEST_CASE("loader: corrupt_row changes one byte of that row and nothing else") {
    Checkpoint checkpoint;
    Table table = load(checkpoint, 1);
    const fixture::LayerData& data = checkpoint.layer(1);
    CHECK_THROWS_AS(table.corrupt_row(data.rows), engram::ResourceError);
    table.corrupt_row(5);
    std::set<std::size_t> differing;
    for (std::size_t i = 0; i < data.weights.size(); ++i) {
        if (table.planes().weights[i] != static_cast<std::byte>(data.weights[i])) differing.insert(i);
    }
    CHECK(differing == std::set<std::size_t>{5 * 256});
}

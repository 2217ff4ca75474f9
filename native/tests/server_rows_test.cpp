// The whole server over the real transport: rows of the synthetic checkpoint through a client channel.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <random>

#include "tests/server_child.h"
#include "transport/ofl.h"

namespace {

using fixture::Checkpoint;
using fixture::Child;
using nlohmann::json;

constexpr std::uint32_t kMaxRows = 5000;

struct Running {
    Checkpoint checkpoint;
    fixture::TempDir dir;
    std::string control = (dir.path() / "control").string();
    Child server;
    ofl::Endpoint endpoint;
    std::vector<std::byte> weights = std::vector<std::byte>(kMaxRows * 256);
    std::vector<std::byte> scales = std::vector<std::byte>(kMaxRows * 8);

    explicit Running(const std::vector<std::string>& more = {}, const char* binary = ENGRAM_SERVER_PATH)
        : server(argv(more, binary)) {
        const std::string address = status()["listeners"][0];
        REQUIRE(ofl::parse_endpoint("tcp://" + address, endpoint).ok());
    }

    [[nodiscard]] std::vector<std::string> argv(const std::vector<std::string>& more, const char* binary) const {
        std::vector<std::string> words = {binary,        "serve",
                                          "--manifest",  checkpoint.manifest_path().string(),
                                          "--model-dir", checkpoint.dir().string(),
                                          "--control",   control,
                                          "--listen",    "127.0.0.1:0",
                                          "--threads",   "3"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }

    [[nodiscard]] json status() const {
        const auto done =
            fixture::run({ENGRAM_SERVER_PATH, "status", "--control", control, "--json", "--wait-ready", "30"});
        REQUIRE_MESSAGE(done.status == 0, done.err);
        return json::parse(done.out);
    }

    [[nodiscard]] ofl::OpenRequest request(std::uint32_t layer) const {
        const engram::Manifest manifest = checkpoint.manifest();
        ofl::OpenRequest open;
        open.layer = layer;
        open.end = manifest.find(layer)->rows;
        open.identity = manifest.find(layer)->identity;
        open.max_rows = kMaxRows;
        return open;
    }

    ofl::Status connect(const ofl::OpenRequest& open, std::unique_ptr<ofl::Channel>& channel) {
        return ofl::connect(endpoint, open, {weights.data(), scales.data(), kMaxRows}, soon(), channel);
    }

    [[nodiscard]] static ofl::Deadline soon() { return ofl::Clock::now() + std::chrono::seconds(20); }

    [[nodiscard]] bool right(std::uint32_t layer, const std::vector<std::uint32_t>& ids) const {
        const fixture::LayerData& data = checkpoint.layer(layer);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (std::memcmp(&weights[i * 256], &data.weights[std::size_t{ids[i]} * 256], 256) != 0) return false;
            if (std::memcmp(&scales[i * 8], &data.scales[std::size_t{ids[i]} * 8], 8) != 0) return false;
        }
        return true;
    }
};

}  // namespace

TEST_CASE("server rows: byte-exact over the wire, and counted") {
    Running running;
    std::mt19937_64 random(3);
    std::uint64_t lookups = 0;
    std::uint64_t rows = 0;
    for (const std::uint32_t layer : {1U, 14U}) {
        std::unique_ptr<ofl::Channel> channel;
        const ofl::OpenRequest open = running.request(layer);
        const ofl::Status opened = running.connect(open, channel);
        REQUIRE_MESSAGE(opened.ok(), opened.reason);
        CHECK(channel->info().table_rows == open.end);
        for (const std::size_t count : {1UL, 24UL, 288UL, 1024UL, 2049UL, 5000UL}) {
            std::vector<std::uint32_t> ids(count);
            for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(random() % open.end);
            ids.front() = static_cast<std::uint32_t>(open.end - 1);
            ids.back() = 0;
            const ofl::Status looked = channel->lookup(++lookups, ids, Running::soon());
            REQUIRE_MESSAGE(looked.ok(), looked.reason);
            CHECK(running.right(layer, ids));
            rows += count;
        }
        channel->retire();
    }
    const json status = running.status();
    CHECK(status["lookups"] == lookups);
    CHECK(status["rows"] == rows);
    CHECK(status["bytes"] == rows * 264);
    CHECK(status["opens"]["total"] == 2);
    CHECK(status["gather_us"]["count"].get<std::uint64_t>() >= lookups);
    running.server.signal(SIGTERM);
    CHECK(running.server.wait() == 0);
}

TEST_CASE("server rows: what must not be opened is refused with its code, and counted") {
    Running running;
    const auto refuse = [&](const ofl::OpenRequest& open, ofl::Code wanted) {
        std::unique_ptr<ofl::Channel> channel;
        const ofl::Status status = running.connect(open, channel);
        CHECK_MESSAGE(status.code == wanted, status.reason);
        CHECK(channel == nullptr);
    };
    ofl::OpenRequest open = running.request(1);
    open.identity[0] ^= 1;
    refuse(open, ofl::Code::kRefusalIdentity);
    open = running.request(1);
    open.layer = 2;
    refuse(open, ofl::Code::kRefusalLayer);
    open = running.request(1);
    open.end += 1;
    refuse(open, ofl::Code::kRefusalRange);
    open.start = open.end;
    refuse(open, ofl::Code::kInvalid);  // an empty range is not even sent
    const json refusals = running.status()["refusals"];
    CHECK(refusals["total"] == 3);
    CHECK(refusals["by_code"]["-103"] == 1);
    CHECK(refusals["by_code"]["-101"] == 1);
}

TEST_CASE("server rows: SIGTERM ends it with connections open") {
    Running running;
    std::unique_ptr<ofl::Channel> channel;
    REQUIRE(running.connect(running.request(1), channel).ok());
    CHECK(running.status()["opens"]["current"] == 1);
    running.server.signal(SIGTERM);
    CHECK(running.server.wait() == 0);
    const std::uint32_t id = 0;
    CHECK_FALSE(channel->lookup(1, {&id, 1}, Running::soon()).ok());
    channel->retire();
}

TEST_CASE("server rows: the corrupt fault changes that row alone") {
    Running running({"--fault", "corrupt=1:5"}, ENGRAM_SERVER_FAULTS_PATH);
    std::unique_ptr<ofl::Channel> channel;
    REQUIRE(running.connect(running.request(1), channel).ok());
    REQUIRE(channel->lookup(1, std::vector<std::uint32_t>{4, 6}, Running::soon()).ok());
    CHECK(running.right(1, {4, 6}));
    REQUIRE(channel->lookup(2, std::vector<std::uint32_t>{5}, Running::soon()).ok());
    CHECK_FALSE(running.right(1, {5}));
    channel->retire();
}

TEST_CASE("server rows: a key file binds both sides") {
    const fixture::TempDir dir;
    const std::string key = (dir.path() / "key").string();
    fixture::write_file(key, "secret\n");
    Running running({"--key-file", key});
    std::unique_ptr<ofl::Channel> channel;
    ofl::OpenRequest open = running.request(1);
    CHECK(running.connect(open, channel).code == ofl::Code::kRefusalAuth);
    open.key = "secret\n";
    const ofl::Status status = running.connect(open, channel);
    CHECK_MESSAGE(status.ok(), status.reason);
    CHECK(running.server.err().find("can be read by others") != std::string::npos);
}

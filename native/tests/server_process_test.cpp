#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "server/control.h"
#include "tests/server_child.h"

namespace {

using fixture::Checkpoint;
using fixture::Child;
using fixture::Finished;
using nlohmann::json;

struct Setup {
    Checkpoint checkpoint;
    fixture::TempDir dir;
    std::string control = (dir.path() / "control").string();

    [[nodiscard]] std::vector<std::string> serve(const std::vector<std::string>& more = {},
                                                 const char* binary = ENGRAM_SERVER_PATH) const {
        std::vector<std::string> argv = {binary,        "serve",
                                         "--manifest",  checkpoint.manifest_path().string(),
                                         "--model-dir", checkpoint.dir().string(),
                                         "--control",   control};
        argv.insert(argv.end(), more.begin(), more.end());
        return argv;
    }
    [[nodiscard]] Finished status(const std::vector<std::string>& more = {}) const {
        std::vector<std::string> argv = {ENGRAM_SERVER_PATH, "status", "--control", control};
        argv.insert(argv.end(), more.begin(), more.end());
        return fixture::run(argv);
    }
    [[nodiscard]] json ready() const {
        const Finished done = status({"--json", "--wait-ready", "30"});
        REQUIRE_MESSAGE(done.status == 0, done.err);
        return json::parse(done.out);
    }
};

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// A port of 127.0.0.1 that is taken while this lives.
class TakenPort {
  public:
    TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0);
        REQUIRE(::listen(fd_, 1) == 0);
        REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
        text_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    }
    ~TakenPort() { ::close(fd_); }
    TakenPort(const TakenPort&) = delete;
    TakenPort& operator=(const TakenPort&) = delete;
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

  private:
    int fd_;
    std::string text_;
};

}  // namespace

TEST_CASE("server: loads, verifies, says so, and stops cleanly on SIGTERM") {
    Setup setup;
    const std::string pid_file = (setup.dir.path() / "pid").string();
    Child server(setup.serve({"--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--pid-file", pid_file}));
    const json status = setup.ready();
    CHECK(status["schema"] == 1);
    CHECK(status["ready"] == true);
    CHECK(status["pid"] == server.pid());
    CHECK(fixture::read_file(pid_file) == std::to_string(server.pid()) + "\n");
    CHECK(status["listeners"].size() == 2);
    CHECK(status["listeners"][0] != "127.0.0.1:0");
    REQUIRE(status["tables"].size() == 2);
    for (const json& table : status["tables"]) {
        CHECK(table["verified"] == true);
        CHECK(table["progress"] == 1.0);
        CHECK(table["identity"] == setup.checkpoint.json(table["layer"])["identity"]);
        CHECK(table["rows"] == setup.checkpoint.layer(table["layer"]).rows);
        CHECK(table["bytes"] == setup.checkpoint.layer(table["layer"]).rows * 264);
    }
    CHECK(status["rss_bytes"].get<std::uint64_t>() > 2 * setup.checkpoint.layer(1).rows * 264);
    CHECK(status["huge_share"].get<double>() >= 0.0);
    CHECK(status["huge_share"].get<double>() <= 1.0);
    CHECK(status["lookups"] == 0);
    struct stat info{};
    REQUIRE(::stat(setup.control.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);

    const Finished text = setup.status();
    CHECK(text.status == 0);
    CHECK(has(text.out, "ready=True layer=1 rows=" + std::to_string(setup.checkpoint.layer(1).rows) +
                            " verified=True identity=" + setup.checkpoint.json(1)["identity"].get<std::string>()));
    CHECK(has(text.out, "listening " + status["listeners"][1].get<std::string>() + "\n"));
    CHECK(has(text.out, "opens=0 lookups=0 rows=0 refusals=0\n"));

    server.signal(SIGTERM);
    CHECK(server.wait() == 0);
    CHECK_FALSE(std::filesystem::exists(setup.control));
    CHECK_FALSE(std::filesystem::exists(pid_file));
    const std::string log = server.err();
    CHECK(has(log, " engram_server: listening " + status["listeners"][0].get<std::string>() + "\n"));
    CHECK(has(log, " engram_server: layer 14: verified, rows "));
    CHECK(has(log, " engram_server: ready: tables 2, "));
    CHECK(has(log, " engram_server: stopping on SIGTERM\n"));
    CHECK(has(log, " engram_server: stopped\n"));
    CHECK(setup.status().status == 1);
}

TEST_CASE("server: SIGINT, and a signal while it starts, end it cleanly too") {
    Setup setup;
    {
        Child server(setup.serve({"--listen", "127.0.0.1:0"}));
        static_cast<void>(setup.ready());
        server.signal(SIGINT);
        CHECK(server.wait() == 0);
    }
    Child server(setup.serve({"--listen", "127.0.0.1:0"}));
    while (!std::filesystem::exists(setup.control) && !server.wait(std::chrono::milliseconds(1))) {
    }
    server.signal(SIGTERM);
    CHECK(server.wait() == 0);
    CHECK_FALSE(std::filesystem::exists(setup.control));
}

TEST_CASE("server: --layers serves those only, and must name layers of the manifest") {
    Setup setup;
    {
        Child server(setup.serve({"--listen", "127.0.0.1:0", "--layers", "14", "--no-huge-pages"}));
        const json status = setup.ready();
        REQUIRE(status["tables"].size() == 1);
        CHECK(status["tables"][0]["layer"] == 14);
        CHECK(status["huge_share"] == 0.0);
    }
    std::filesystem::remove(setup.control);
    const Finished refused = fixture::run(setup.serve({"--listen", "127.0.0.1:0", "--layers", "1,2"}));
    CHECK(refused.status == 2);
    CHECK(has(refused.err, "--layers 2"));
}

TEST_CASE("server: a port in use fails at once and is named") {
    Setup setup;
    const TakenPort taken;
    const Finished done = fixture::run(setup.serve({"--listen", taken.text()}));
    CHECK(done.status == 1);
    CHECK_MESSAGE(has(done.err, taken.text()), done.err);
    CHECK_FALSE(std::filesystem::exists(setup.control));
}

TEST_CASE("server: wildcard addresses are refused") {
    Setup setup;
    for (const char* const address : {"0.0.0.0:0", "[::]:0"}) {
        const Finished done = fixture::run(setup.serve({"--listen", address}));
        CHECK(done.status == 2);
        CHECK(has(done.err, "every network"));
        CHECK_FALSE(std::filesystem::exists(setup.control));
    }
}

TEST_CASE("server: refuses to serve a table that is not the manifest's") {
    Setup setup;
    fixture::flip_byte(setup.checkpoint.shard_path(14), setup.checkpoint.offset(14, "scale") + 9);
    const std::string log = (setup.dir.path() / "log").string();
    const Finished done = fixture::run(setup.serve({"--listen", "127.0.0.1:0", "--log", log}));
    CHECK(done.status == 3);
    for (const std::string& text : {done.err, fixture::read_file(log)}) {
        CHECK_MESSAGE(has(text, "layer 14 scale segment 0 of "), text);
        CHECK(has(text, setup.checkpoint.shard_path(14).string()));
    }
    CHECK_FALSE(std::filesystem::exists(setup.control));
}

TEST_CASE("server: what it cannot start with, it names") {
    Setup setup;
    const Finished no_manifest =
        fixture::run({ENGRAM_SERVER_PATH, "serve", "--manifest", "/nonexistent.json", "--model-dir", "/", "--listen",
                      "127.0.0.1:0", "--control", setup.control});
    CHECK(no_manifest.status == 1);
    CHECK(has(no_manifest.err, "/nonexistent.json: cannot be read"));
    const std::string empty = (setup.dir.path() / "key").string();
    fixture::write_file(empty, "");
    const Finished no_key = fixture::run(setup.serve({"--listen", "127.0.0.1:0", "--key-file", empty}));
    CHECK(no_key.status == 1);
    CHECK(has(no_key.err, "--key-file " + empty));
}

TEST_CASE("server: a killed server's socket is taken over, a live server is not disturbed") {
    Setup setup;
    {
        Child server(setup.serve({"--listen", "127.0.0.1:0"}));
        static_cast<void>(setup.ready());
        server.signal(SIGKILL);
        CHECK(server.wait() == 128 + SIGKILL);
    }
    CHECK(std::filesystem::exists(setup.control));
    CHECK(setup.status().status == 1);
    Child server(setup.serve({"--listen", "127.0.0.1:0"}));
    const json status = setup.ready();
    const Finished second = fixture::run(setup.serve({"--listen", "127.0.0.1:0"}));
    CHECK(second.status == 1);
    CHECK(has(second.err, "a server is running there already"));
    CHECK(setup.ready()["pid"] == status["pid"]);
}

TEST_CASE("server: faults exist in the fault build alone") {
    Setup setup;
    const std::vector<std::string> fault = {"--listen", "127.0.0.1:0", "--fault", "corrupt=1:5"};
    const Finished refused = fixture::run(setup.serve(fault));
    CHECK(refused.status == 2);
    CHECK(has(refused.err, "--fault"));
    Child server(setup.serve(fault, ENGRAM_SERVER_FAULTS_PATH));
    static_cast<void>(setup.ready());
    CHECK(has(server.err(), "FAULT: row 5 of layer 1 was corrupted on purpose"));
    const Finished unknown =
        fixture::run(setup.serve({"--listen", "127.0.0.1:0", "--fault", "nap=1"}, ENGRAM_SERVER_FAULTS_PATH));
    CHECK(unknown.status == 2);
}

TEST_CASE("server: --wait-ready tells an absent server from one that is not ready") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    const std::vector<std::string> wait = {ENGRAM_SERVER_PATH, "status",       "--control", path,
                                           "--json",           "--wait-ready", "0.3"};
    const Finished absent = fixture::run(wait);
    CHECK(absent.status == 1);
    CHECK(has(absent.err, "no server answers on control socket " + path));
    engram::server::Control control(path);
    control.start([] { return std::string(R"({"ready":false})"); });
    const Finished loading = fixture::run(wait);
    CHECK(loading.status == 3);
    CHECK(json::parse(loading.out)["ready"] == false);
    CHECK(has(loading.err, "not ready within 0.3 s"));
}

TEST_CASE("server: a server that dies while it is waited for is reported at once") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    std::optional<engram::server::Control> control;
    control.emplace(path);
    control->start([] { return std::string(R"({"ready":false})"); });
    Child waiter({ENGRAM_SERVER_PATH, "status", "--control", path, "--wait-ready", "60"});
    CHECK_FALSE(waiter.wait(std::chrono::milliseconds(500)).has_value());
    control.reset();
    CHECK(waiter.wait(std::chrono::seconds(10)) == 1);
}

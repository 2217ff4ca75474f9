#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "server/control.h"
#include "table/error.h"
#include "tests/table_fixture.h"

namespace {

using engram::ResourceError;
using engram::server::ask_control;
using engram::server::Control;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{5000};

bool exists(const std::filesystem::path& path) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0;
}

int connect_to(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return fd;
}

// A socket file whose listener is gone, as a killed server leaves it.
void leave_stale_socket(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::close(fd);
}

}  // namespace

TEST_CASE("control: answers, is private, and is gone afterwards") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    {
        Control control(path);
        struct stat info{};
        REQUIRE(::stat(path.c_str(), &info) == 0);
        CHECK((info.st_mode & 0777) == 0600);
        int asked = 0;
        control.start([&asked] { return "answer " + std::to_string(++asked); });
        CHECK(ask_control(path, kPatience) == "answer 1\n");
        CHECK(ask_control(path, kPatience) == "answer 2\n");
        control.stop();
        control.stop();
    }
    CHECK_FALSE(exists(path));
    CHECK_THROWS_AS(static_cast<void>(ask_control(path, kPatience)), ResourceError);
}

TEST_CASE("control: a dead server's socket is taken over, a live one's and a foreign file are refused") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    leave_stale_socket(path);
    REQUIRE(exists(path));
    Control control(path);
    control.start([] { return std::string("alive"); });
    CHECK_THROWS_AS(Control second(path), ResourceError);
    CHECK(ask_control(path, kPatience) == "alive\n");
    const std::string file = (dir.path() / "file").string();
    fixture::write_file(file, "precious");
    CHECK_THROWS_AS(Control third(file), ResourceError);
    CHECK(fixture::read_file(file) == "precious");
    CHECK_THROWS_AS(Control fourth(std::string(200, 'x')), ResourceError);
    CHECK_THROWS_AS(Control fifth(""), ResourceError);
}

TEST_CASE("control: a successor's socket is left alone") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    std::optional<Control> first;
    first.emplace(path);
    ::unlink(path.c_str());
    Control second(path);
    first.reset();
    CHECK(exists(path));
}

TEST_CASE("control: clients that hang up or never read do not stop it") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    Control control(path);
    control.start([] { return std::string(100, 'x'); });
    std::vector<int> silent;
    for (int i = 0; i < 5; ++i) silent.push_back(connect_to(path));
    for (int i = 0; i < 5; ++i) ::close(connect_to(path));
    CHECK(ask_control(path, kPatience).size() == 101);
    for (const int fd : silent) ::close(fd);
}

TEST_CASE("control: a server that does not answer is given up on") {
    const fixture::TempDir dir;
    const std::string path = (dir.path() / "control").string();
    const Control control(path);  // bound, but nobody answers
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(static_cast<void>(ask_control(path, milliseconds(100))), ResourceError);
    CHECK(std::chrono::steady_clock::now() - start < milliseconds(5000));
}

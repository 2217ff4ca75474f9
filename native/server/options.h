// The command line of engram_server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace engram::server {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kCheckSaysNo = 3;

struct ServeOptions {
    std::string manifest;
    std::string model_dir;
    std::vector<std::string> listen;
    std::string control;
    unsigned threads = 8;
    std::uint32_t max_rows = 65536;
    std::uint32_t max_connections = 64;
    std::string key_file;
    std::string log;
    std::string pid_file;
    std::vector<std::uint32_t> layers;  // empty: all of the manifest
    bool no_huge_pages = false;
    std::vector<std::string> faults;  // the fault build only
};

struct StatusOptions {
    std::string control;
    bool json = false;
    std::optional<double> wait_ready_s;
};

// What to do, or the exit status when the command line itself settled it (--help, a usage error).
using Command = std::variant<ServeOptions, StatusOptions, int>;

[[nodiscard]] Command parse_command_line(int argc, const char* const* argv);

// Why the server must not listen there, if so: an address that means every interface, or no port. Pure.
[[nodiscard]] std::optional<std::string> listen_problem(std::string_view address);

}  // namespace engram::server

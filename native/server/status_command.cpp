#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "server/control.h"
#include "server/serve.h"
#include "server/status.h"
#include "table/error.h"

namespace engram::server {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kPatience{5000};
constexpr std::chrono::milliseconds kBetween{100};

Json ask(const std::string& path) {
    const std::string answer = ask_control(path, kPatience);
    try {
        return Json::parse(answer);
    } catch (const Json::exception& error) {
        throw ResourceError(fmt::format("control socket {}: its answer is no status document: {}", path, error.what()));
    }
}

// Asks until the server is ready or `until` has passed; the last answer. A server that is only starting has no socket
// yet, so silence is waited out as well, until it has answered once: then silence means that it died.
Json wait_ready(const std::string& path, Clock::time_point until) {
    bool answered = false;
    for (;;) {
        try {
            Json status = ask(path);
            answered = true;
            if (status.at("ready").get<bool>() || Clock::now() >= until) return status;
        } catch (const ResourceError&) {
            if (answered || Clock::now() >= until) throw;
        }
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
        std::this_thread::sleep_for(std::clamp(left, std::chrono::milliseconds{1}, kBetween));
    }
}

}  // namespace

int run_status(const StatusOptions& options) {
    try {
        const auto wait = std::chrono::duration<double>(options.wait_ready_s.value_or(0));
        const Json status =
            options.wait_ready_s
                ? wait_ready(options.control, Clock::now() + std::chrono::duration_cast<Clock::duration>(wait))
                : ask(options.control);
        const std::string text = options.json ? status.dump(2) + "\n" : status_text(status);
        std::fwrite(text.data(), 1, text.size(), stdout);
        if (std::fflush(stdout) != 0) throw ResourceError("standard output cannot be written");
        if (options.wait_ready_s && !status.at("ready").get<bool>()) {
            fmt::print(stderr, "engram_server: not ready within {:g} s\n", *options.wait_ready_s);
            return kCheckSaysNo;
        }
        return kDone;
    } catch (const std::exception& error) {
        fmt::print(stderr, "engram_server: {}\n", error.what());
        return kFailed;
    }
}

}  // namespace engram::server

// The status document, and how it is shown as text. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/registry.h"
#include "table/memory.h"
#include "transport/ofl_server.h"

namespace engram::server {

struct ServerFacts {
    bool ready = false;
    int pid = 0;
    double started_at = 0;  // unix time
    double uptime_s = 0;
    Residency memory;
    std::vector<TableView> tables;
    std::vector<std::string> listeners;
    ofl::ServerStats stats;
};

[[nodiscard]] const char* version() noexcept;
[[nodiscard]] nlohmann::ordered_json status_json(const ServerFacts& facts);
// From the JSON, so that it shows what a server of another version said.
[[nodiscard]] std::string status_text(const nlohmann::ordered_json& status);

}  // namespace engram::server

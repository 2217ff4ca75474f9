#include "server/status.h"

#include <fmt/format.h>

#include <iterator>

namespace engram::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

const char* word(bool value) {
    return value ? "True" : "False";
}

// The share of the verified tables that huge pages back; 0 while there is none.
double huge_share(const std::vector<TableView>& tables) {
    Residency total;
    for (const TableView& table : tables) {
        total.resident += table.residency.resident;
        total.huge += table.residency.huge;
    }
    return total.resident == 0 ? 0.0 : static_cast<double>(total.huge) / static_cast<double>(total.resident);
}

Json table_json(const TableView& table) {
    return {{"layer", table.layer},
            {"rows", table.rows},
            {"bytes", table.bytes},
            {"verified", table.verified},
            {"identity", table.identity ? Json(to_hex(*table.identity)) : Json(nullptr)},
            {"progress", table.progress},
            {"load_s", table.load_s}};
}

Json session_json(const ofl::SessionStats& session) {
    return {{"session", session.session}, {"peer", session.peer}, {"layer", session.layer},
            {"start", session.start},     {"end", session.end},   {"lookups", session.lookups},
            {"rows", session.rows}};
}

}  // namespace

const char* version() noexcept {
    return ENGRAM_VERSION;
}

Json status_json(const ServerFacts& facts) {
    const ofl::ServerStats& stats = facts.stats;
    Json tables = Json::array();
    for (const TableView& table : facts.tables) tables.push_back(table_json(table));
    Json by_code = Json::object();
    for (const auto& [code, count] : stats.refusals_by_code) by_code[std::to_string(code)] = count;
    Json sessions = Json::array();
    for (const ofl::SessionStats& session : stats.sessions) sessions.push_back(session_json(session));
    const ofl::GatherStats& gather = stats.gather;
    Json status;
    status["schema"] = 1;
    status["ready"] = facts.ready;
    status["version"] = version();
    status["protocol"] = 1;
    status["pid"] = facts.pid;
    status["started_at"] = facts.started_at;
    status["uptime_s"] = facts.uptime_s;
    status["rss_bytes"] = facts.memory.resident;
    status["huge_bytes"] = facts.memory.huge;
    status["huge_share"] = huge_share(facts.tables);
    status["tables"] = std::move(tables);
    status["listeners"] = facts.listeners;
    status["connections"] = stats.connections;
    status["opens"] = {{"current", stats.opens_current}, {"total", stats.opens_total}};
    status["lookups"] = stats.lookups;
    status["rows"] = stats.rows;
    status["bytes"] = stats.bytes;
    status["refusals"] = {{"total", stats.refusals_total}, {"by_code", std::move(by_code)}};
    status["gather_us"] = {{"count", gather.count},
                           {"p50", gather.p50_us},
                           {"p99", gather.p99_us},
                           {"mean", gather.mean_us},
                           {"max", gather.max_us}};
    status["sessions"] = std::move(sessions);
    return status;
}

std::string status_text(const Json& status) {
    std::string text;
    const auto out = std::back_inserter(text);
    for (const Json& table : status.at("tables")) {
        const bool verified = table.at("verified").get<bool>();
        fmt::format_to(out, "ready={} layer={} rows={} verified={} identity={}", word(status.at("ready").get<bool>()),
                       table.at("layer").get<std::uint64_t>(), table.at("rows").get<std::uint64_t>(), word(verified),
                       verified ? table.at("identity").get<std::string>() : "-");
        if (!verified) fmt::format_to(out, " progress={:.0f}%", table.at("progress").get<double>() * 100);
        text += '\n';
    }
    for (const Json& listener : status.at("listeners")) {
        fmt::format_to(out, "listening {}\n", listener.get<std::string>());
    }
    fmt::format_to(out, "opens={} lookups={} rows={} refusals={}",
                   status.at("opens").at("current").get<std::uint64_t>(), status.at("lookups").get<std::uint64_t>(),
                   status.at("rows").get<std::uint64_t>(), status.at("refusals").at("total").get<std::uint64_t>());
    for (const auto& [code, count] : status.at("refusals").at("by_code").items()) {
        fmt::format_to(out, " {}={}", code, count.get<std::uint64_t>());
    }
    const Json& gather = status.at("gather_us");
    fmt::format_to(out, "\ngather_us count={} p50={:.1f} p99={:.1f} mean={:.1f} max={:.1f}\n",
                   gather.at("count").get<std::uint64_t>(), gather.at("p50").get<double>(),
                   gather.at("p99").get<double>(), gather.at("mean").get<double>(), gather.at("max").get<double>());
    for (const Json& session : status.at("sessions")) {
        fmt::format_to(out, "session={} peer={} layer={} rows=[{}, {}) lookups={}\n",
                       session.at("session").get<std::uint64_t>(), session.at("peer").get<std::string>(),
                       session.at("layer").get<std::uint64_t>(), session.at("start").get<std::uint64_t>(),
                       session.at("end").get<std::uint64_t>(), session.at("lookups").get<std::uint64_t>());
    }
    fmt::format_to(out, "pid={} uptime={:.0f}s rss={:.1f}GiB huge={:.1f}GiB huge_share={:.3f} version={}\n",
                   status.at("pid").get<int>(), status.at("uptime_s").get<double>(),
                   status.at("rss_bytes").get<double>() / kGib, status.at("huge_bytes").get<double>() / kGib,
                   status.at("huge_share").get<double>(), status.at("version").get<std::string>());
    return text;
}

}  // namespace engram::server

#include <doctest/doctest.h>

#include <stdexcept>

#include "server/faults.h"
#include "server/options.h"
#include "server/registry.h"
#include "server/status.h"
#include "table/error.h"
#include "tests/table_fixture.h"

namespace {

using namespace engram::server;
using ofl::Code;

ofl::OpenRequest request(std::uint64_t start, std::uint64_t end) {
    ofl::OpenRequest open;
    open.layer = 1;
    open.start = start;
    open.end = end;
    open.identity.fill(0x11);
    open.max_rows = 16;
    return open;
}

TableFacts facts() {
    TableFacts table;
    table.layer = 1;
    table.rows = 100;
    table.identity.fill(0x11);
    table.verified = true;
    table.progress = 1;
    return table;
}

Command parse(std::vector<const char*> words) {
    words.insert(words.begin(), "engram_server");
    return parse_command_line(static_cast<int>(words.size()), words.data());
}

}  // namespace

TEST_CASE("admit: each reason has its code, and the first reason in that order is given") {
    const TableFacts table = facts();
    CHECK(decide(request(0, 100), &table).ok());
    CHECK(decide(request(99, 100), &table).ok());
    CHECK(decide(request(0, 100), nullptr).code == Code::kRefusalLayer);

    TableFacts loading = table;
    loading.verified = false;
    loading.progress = 0.426;
    const ofl::Status early = decide(request(0, 100), &loading);
    CHECK(early.code == Code::kRefusalNotReady);
    CHECK(early.reason == "layer 1 is not ready: 43 % loaded and verified");

    const std::pair<std::uint64_t, std::uint64_t> bad[] = {
        {5, 5}, {6, 5}, {0, 101}, {100, 101}, {0, ~std::uint64_t{0}}, {~std::uint64_t{0}, 0}};
    for (const auto& [start, end] : bad) CHECK(decide(request(start, end), &table).code == Code::kRefusalRange);

    ofl::OpenRequest other = request(0, 100);
    other.identity.fill(0x22);
    const ofl::Status refused = decide(other, &table);
    CHECK(refused.code == Code::kRefusalIdentity);
    CHECK(refused.reason == "layer 1 here is 1111111111111111, the reader's manifest says 2222222222222222");
    CHECK(decide(other, &loading).code == Code::kRefusalNotReady);
    other.end = 200;
    CHECK(decide(other, &table).code == Code::kRefusalRange);
}

TEST_CASE("registry: refuses until a table is published, then serves its rows") {
    fixture::Checkpoint checkpoint;
    const engram::Manifest manifest = checkpoint.manifest();
    Registry registry(manifest, {1, 14}, 2);
    ofl::OpenRequest open;
    open.layer = 14;
    open.end = manifest.find(14)->rows;
    open.identity = manifest.find(14)->identity;
    std::uint64_t rows = 0;
    CHECK(registry.admit(open, rows).code == Code::kRefusalNotReady);
    CHECK_FALSE(registry.tables()[1].identity.has_value());
    registry.set_progress(14, 0.5);
    registry.set_progress(14, 0.25);
    CHECK(registry.tables()[1].progress == 0.5);

    registry.publish(engram::load_table(manifest, 14, checkpoint.dir(), {}), 1.5);
    CHECK(registry.admit(open, rows).ok());
    CHECK(rows == manifest.find(14)->rows);
    CHECK_FALSE(registry.ready());
    std::byte weights[2 * 256];
    std::byte scales[2 * 8];
    const std::uint32_t ids[] = {3, static_cast<std::uint32_t>(rows - 1)};
    registry.gather(14, ids, weights, scales);
    const fixture::LayerData& data = checkpoint.layer(14);
    CHECK(std::memcmp(weights, &data.weights[3 * 256], 256) == 0);
    CHECK(std::memcmp(scales + 8, &data.scales[(rows - 1) * 8], 8) == 0);

    registry.publish(engram::load_table(manifest, 1, checkpoint.dir(), {}), 1.5);
    CHECK(registry.ready());
    CHECK(registry.tables()[0].verified);
    CHECK_THROWS_AS(registry.publish(engram::load_table(manifest, 1, checkpoint.dir(), {}), 1), engram::ResourceError);
    CHECK_THROWS_AS(Registry(manifest, {2}, 1), engram::ManifestError);
}

TEST_CASE("options: an address that means every interface is refused with the reason") {
    for (const char* const address : {"0.0.0.0:18610", "0:1", "0x0:1", "[::]:18610", "[0::0]:1", "[::ffff:0.0.0.0]:1",
                                      "*:1", ":1", "[]:1", ":::1"}) {
        const auto problem = listen_problem(address);
        REQUIRE_MESSAGE(problem.has_value(), address);
        CHECK_MESSAGE(problem->find("every network") != std::string::npos, address);
    }
    CHECK(listen_problem("127.0.0.1")->find("has no port") != std::string::npos);
    CHECK(listen_problem("127.0.0.1:")->find("has no port") != std::string::npos);
    CHECK(listen_problem("::1:18610")->find("brackets") != std::string::npos);
    for (const char* const address : {"127.0.0.1:0", "[::1]:18610", "10.202.28.1:18610", "table-host:18610"}) {
        CHECK_FALSE_MESSAGE(listen_problem(address).has_value(), address);
    }
}

TEST_CASE("options: the command line") {
    const Command command =
        parse({"serve", "--manifest", "m", "--model-dir", "d", "--listen", "127.0.0.1:1", "--listen", "[::1]:2",
               "--control", "c", "--layers", "1,14", "--threads", "3", "--no-huge-pages"});
    REQUIRE(std::holds_alternative<ServeOptions>(command));
    const auto& options = std::get<ServeOptions>(command);
    CHECK(options.listen == std::vector<std::string>{"127.0.0.1:1", "[::1]:2"});
    CHECK(options.layers == std::vector<std::uint32_t>{1, 14});
    CHECK(options.threads == 3);
    CHECK(options.max_rows == 65536);
    CHECK(options.max_connections == 64);
    CHECK(options.no_huge_pages);
    CHECK_FALSE(std::get<StatusOptions>(parse({"status", "--control", "c"})).wait_ready_s.has_value());
    CHECK(std::get<StatusOptions>(parse({"status", "--control", "c", "--wait-ready", "2.5"})).wait_ready_s == 2.5);

    for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
             {},
             {"serve"},
             {"status"},
             {"dance"},
             {"serve", "--manifest", "m", "--model-dir", "d", "--listen", "0.0.0.0:1", "--control", "c"},
             {"serve", "--manifest", "m", "--model-dir", "d", "--listen", "127.0.0.1:1", "--control", "c", "--threads",
              "0"},
             {"status", "--control", "c", "--wait-ready", "soon"}}) {
        const Command refused = parse(words);
        REQUIRE(std::holds_alternative<int>(refused));
        CHECK(std::get<int>(refused) == kUsage);
    }
    CHECK(std::get<int>(parse({"--help"})) == kDone);
    CHECK(std::get<int>(parse({"--version"})) == kDone);
}

TEST_CASE("faults: what --fault means") {
    const FaultPlan plan =
        parse_faults({"corrupt=1:5", "corrupt=14:0", "delay-ms=7", "half-frame=2", "garbage=3", "drop-open=4"});
    REQUIRE(plan.corrupt.size() == 2);
    CHECK(plan.corrupt[0].layer == 1);
    CHECK(plan.corrupt[0].row == 5);
    CHECK(plan.transport.delay_ms == 7);
    CHECK(plan.transport.half_frame == 2);
    CHECK(plan.transport.garbage == 3);
    CHECK(plan.transport.drop_open == 4);
    for (const char* const spec : {"", "corrupt", "corrupt=1", "corrupt=1:", "corrupt=:1", "delay-ms=x", "delay-ms=1x",
                                   "delay-ms=-1", "sleep=1"}) {
        CHECK_THROWS_AS(static_cast<void>(parse_faults({spec})), std::invalid_argument);
    }
}

TEST_CASE("status: the document has every field, and the text shows it") {
    ServerFacts facts;
    facts.ready = true;
    facts.pid = 77;
    facts.started_at = 1.5;
    facts.memory = {3000, 2000};
    TableView table{
        .layer = 1, .rows = 100, .bytes = 26400, .identity = {}, .residency = {.resident = 400, .huge = 300}};
    table.verified = true;
    table.identity.emplace().fill(0xab);
    table.progress = 1;
    TableView loading{.layer = 14, .rows = 100, .bytes = 26400, .identity = {}, .residency = {}};
    loading.progress = 0.25;
    facts.tables = {table, loading};
    facts.listeners = {"127.0.0.1:18610", "[::1]:18610"};
    facts.stats.opens_current = 4;
    facts.stats.opens_total = 9;
    facts.stats.lookups = 12;
    facts.stats.rows = 3456;
    facts.stats.refusals_total = 3;
    facts.stats.refusals_by_code = {{-101, 2}, {-107, 1}};
    facts.stats.sessions.push_back(
        {.session = 5, .peer = "127.0.0.1:5555", .layer = 1, .start = 0, .end = 50, .lookups = 2, .rows = 9});

    const nlohmann::ordered_json document = status_json(facts);
    for (const char* const key :
         {"schema",    "ready",      "version",    "protocol", "pid",       "started_at",  "uptime_s",
          "rss_bytes", "huge_bytes", "huge_share", "tables",   "listeners", "connections", "opens",
          "lookups",   "rows",       "bytes",      "refusals", "gather_us", "sessions"}) {
        CHECK_MESSAGE(document.contains(key), key);
    }
    CHECK(document["huge_share"] == 0.75);
    CHECK(document["tables"][0]["identity"].get<std::string>().size() == 64);
    CHECK(document["tables"][1]["identity"].is_null());
    CHECK(document["refusals"]["by_code"]["-101"] == 2);

    const std::string text = status_text(document);
    const std::string identity = engram::to_hex(*table.identity);
    CHECK(text.find("ready=True layer=1 rows=100 verified=True identity=" + identity + "\n") != std::string::npos);
    CHECK(text.find("ready=True layer=14 rows=100 verified=False identity=- progress=25%\n") != std::string::npos);
    CHECK(text.find("listening 127.0.0.1:18610\nlistening [::1]:18610\n") != std::string::npos);
    CHECK(text.find("opens=4 lookups=12 rows=3456 refusals=3 -107=1 -101=2\n") != std::string::npos);
    CHECK(text.find("session=5 peer=127.0.0.1:5555 layer=1 rows=[0, 50) lookups=2\n") != std::string::npos);
}

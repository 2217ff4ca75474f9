#include <doctest/doctest.h>

#include "tests/server_child.h"

namespace {

using fixture::Checkpoint;
using fixture::Finished;
using nlohmann::json;

Finished check(const Checkpoint& checkpoint, const std::string& mode, const std::vector<std::string>& more = {}) {
    std::vector<std::string> argv = {
        ENGRAM_CHECK_PATH,        "--mode", mode, "--manifest", checkpoint.manifest_path().string(), "--model-dir",
        checkpoint.dir().string()};
    argv.insert(argv.end(), more.begin(), more.end());
    return fixture::run(argv);
}

}  // namespace

TEST_CASE("engram_check: a good checkpoint passes both modes") {
    Checkpoint checkpoint;
    for (const char* const mode : {"ident", "verify"}) {
        const Finished text = check(checkpoint, mode);
        CHECK(text.status == 0);
        CHECK(text.err.empty());
        CHECK(text.out.find("layer=1 rows=" + std::to_string(checkpoint.layer(1).rows) +
                            " identity=" + checkpoint.json(1)["identity"].get<std::string>()) != std::string::npos);
        const json document = json::parse(check(checkpoint, mode, {"--json"}).out);
        CHECK(document["ok"] == true);
        CHECK(document["mode"] == mode);
        CHECK(document["layers"].size() == 2);
        CHECK(document["layers"][1]["identity"] == checkpoint.json(14)["identity"]);
    }
    CHECK(json::parse(check(checkpoint, "ident", {"--json", "--layers", "14"}).out)["layers"].size() == 1);
    checkpoint.pack();
    CHECK(check(checkpoint, "verify").status == 0);
}

TEST_CASE("engram_check: verify finds what ident cannot see, and reports every layer") {
    Checkpoint checkpoint;
    fixture::flip_byte(checkpoint.shard_path(1), checkpoint.offset(1, "weight") + 70000);
    CHECK(check(checkpoint, "ident").status == 0);
    const Finished text = check(checkpoint, "verify");
    CHECK(text.status == 3);
    CHECK(text.err.find("engram_check: layer 1: layer 1 weight segment 1 of ") == 0);
    const Finished done = check(checkpoint, "verify", {"--json"});
    CHECK(done.status == 3);
    const json document = json::parse(done.out);
    CHECK(document["ok"] == false);
    CHECK(document["layers"][0]["ok"] == false);
    CHECK(document["layers"][0]["error"].get<std::string>().find("weight segment 1") != std::string::npos);
    CHECK(document["layers"][1]["ok"] == true);
}

TEST_CASE("engram_check: exit statuses") {
    Checkpoint checkpoint;
    CHECK(check(checkpoint, "dance").status == 2);
    CHECK(check(checkpoint, "ident", {"--layers", "3"}).status == 2);
    CHECK(fixture::run({ENGRAM_CHECK_PATH}).status == 2);
    CHECK(fixture::run({ENGRAM_CHECK_PATH, "--help"}).status == 0);
    std::filesystem::remove(checkpoint.shard_path(14));
    CHECK(check(checkpoint, "ident").status == 3);
    checkpoint.json(1)["identity"] = std::string(64, '0');
    checkpoint.write_manifest();
    CHECK(check(checkpoint, "ident").status == 3);
    fixture::write_file(checkpoint.manifest_path(), "{");
    CHECK(check(checkpoint, "ident").status == 1);
}

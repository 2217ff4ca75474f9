#include <doctest/doctest.h>

#include <functional>

#include "table/error.h"
#include "table/manifest.h"
#include "tests/table_fixture.h"

namespace {

using engram::ManifestError;
using engram::VerifyError;
using fixture::Checkpoint;
using nlohmann::json;

engram::Manifest parse(const json& document) {
    return engram::parse_manifest(document.dump(), "m.json");
}

std::string complaint(const json& document) {
    try {
        static_cast<void>(parse(document));
    } catch (const engram::TableError& error) {
        return error.what();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("manifest: a good one is read, and its digests are derived again") {
    Checkpoint checkpoint;
    const engram::Manifest manifest = checkpoint.manifest();
    CHECK(manifest.checkpoint == "synthetic");
    REQUIRE(manifest.layers.size() == 2);
    const engram::LayerEntry* const entry = manifest.find(14);
    REQUIRE(entry != nullptr);
    CHECK(entry->rows == checkpoint.layer(14).rows);
    CHECK(entry->weight.tensor == "layers.14.engram.embed.weight");
    CHECK(entry->bytes() == entry->rows * 264);
    CHECK(manifest.find(2) == nullptr);
}

TEST_CASE("manifest: the identity text is exactly the documented one") {
    engram::LayerEntry layer;
    layer.layer = 1;
    layer.rows = 5;
    layer.head_sizes = {2, 3};
    layer.weight.digest.fill(0xab);
    layer.scale.digest.fill(0x01);
    std::string ab;
    std::string one;
    for (int i = 0; i < 32; ++i) {
        ab += "ab";
        one += "01";
    }
    CHECK(engram::identity_text(layer, 64) ==
          "dsv41-engram-identity-v1\nlayer=1\nrows=5\nhead_sizes=2,3\n"
          "segment_bytes=64\nweight=F8_E4M3:256:" +
              ab + "\nscale=F8_E8M0:8:" + one + "\n");
}

TEST_CASE("manifest: every complaint names the file and the key") {
    struct Case {
        const char* wanted;
        std::function<void(json&)> damage;
    };
    const Case cases[] = {
        {"m.json: schema: expected 1, found 2", [](json& m) { m["schema"] = 2; }},
        {"m.json: schema: missing", [](json& m) { m.erase("schema"); }},
        {"m.json: checkpoint.name: expected a string, found 5", [](json& m) { m["checkpoint"]["name"] = 5; }},
        {"m.json: geometry.head_dim: expected 256, found 128", [](json& m) { m["geometry"]["head_dim"] = 128; }},
        {"m.json: geometry.layer_ids[1]: layer 1 is named twice", [](json& m) { m["geometry"]["layer_ids"] = {1, 1}; }},
        {"m.json: geometry.num_embeddings: expected one number a layer (2), found 1",
         [](json& m) { m["geometry"]["num_embeddings"] = {5}; }},
        {"m.json: row_format.scale_dtype: expected \"F8_E8M0\", found \"U8\"",
         [](json& m) { m["row_format"]["scale_dtype"] = "U8"; }},
        {"m.json: segment_bytes: expected at least 1, found 0", [](json& m) { m["segment_bytes"] = 0; }},
        {"m.json: segment_bytes: expected a non-negative integer, found -1", [](json& m) { m["segment_bytes"] = -1; }},
        {"m.json: segment_bytes: expected a non-negative integer, found 1.5",
         [](json& m) { m["segment_bytes"] = 1.5; }},
        {"m.json: layers: expected at least one layer", [](json& m) { m["layers"] = json::array(); }},
        {"m.json: layers[0].layer: layer 3 is not in geometry.layer_ids", [](json& m) { m["layers"][0]["layer"] = 3; }},
        {"m.json: layers[1].layer: layer 1 is named twice", [](json& m) { m["layers"][1] = m["layers"][0]; }},
        {"m.json: layers[0].head_sizes: expected 24 heads, found 23",
         [](json& m) { m["layers"][0]["head_sizes"].erase(0); }},
        {"m.json: layers[0].head_sizes[0]: expected 101, found 102",
         [](json& m) { m["layers"][0]["head_sizes"][0] = 102; }},
        {"m.json: layers[0].weight.file: expected a path inside the model directory, found \"../x\"",
         [](json& m) { m["layers"][0]["weight"]["file"] = "../x"; }},
        {"m.json: layers[0].weight.file: expected a path inside the model directory, found \"/etc/passwd\"",
         [](json& m) { m["layers"][0]["weight"]["file"] = "/etc/passwd"; }},
        {"m.json: layers[0].weight.tensor: expected a string, found null",
         [](json& m) { m["layers"][0]["weight"]["tensor"] = nullptr; }},
        {"m.json: layers[0].scale.tensor: expected null in a packed file, found \"layers.1.engram.embed.scale\"",
         [](json& m) { m["layers"][0]["scale"]["packed"] = true; }},
        {"m.json: layers[1].scale.digest: expected 64 lower-case hex digits, found \"AB\"",
         [](json& m) { m["layers"][1]["scale"]["digest"] = "AB"; }},
    };
    for (const Case& each : cases) {
        json document = Checkpoint().json();
        each.damage(document);
        CHECK(complaint(document) == each.wanted);
        CHECK_THROWS_AS(static_cast<void>(parse(document)), ManifestError);
    }
}

TEST_CASE("manifest: segment counts and row counts must fit the geometry") {
    Checkpoint checkpoint;
    json document = checkpoint.json();
    document["layers"][0]["weight"]["segments"].erase(0);
    const std::size_t left = document["layers"][0]["weight"]["segments"].size();
    CHECK(complaint(document) == "m.json: layers[0].weight.segments: expected " + std::to_string(left + 1) +
                                     " segments of 65536 bytes, found " + std::to_string(left));
    document = checkpoint.json();
    document["geometry"]["num_embeddings"][0] = 7;
    CHECK(complaint(document).find("layers[0].rows: expected 7") != std::string::npos);
    document = checkpoint.json();
    document["geometry"]["vocab_size"] = 102;
    CHECK(complaint(document).find("layers[0].head_sizes[0]: expected 103, found 101") != std::string::npos);
}

TEST_CASE("manifest: digests that do not follow from each other are a failed check") {
    const std::string wrong(64, '0');
    for (const char* const key : {"weight", "scale"}) {
        json document = Checkpoint().json();
        document["layers"][0][key]["digest"] = wrong;
        CHECK_THROWS_AS(static_cast<void>(parse(document)), VerifyError);
        CHECK(complaint(document).find(std::string("m.json: layer 1 ") + key + ".digest: expected ") == 0);
        document = Checkpoint().json();
        document["layers"][0][key]["segments"][0] = wrong;
        CHECK_THROWS_AS(static_cast<void>(parse(document)), VerifyError);
    }
    json document = Checkpoint().json();
    document["layers"][1]["identity"] = wrong;
    CHECK_THROWS_AS(static_cast<void>(parse(document)), VerifyError);
    CHECK(complaint(document).find("m.json: layer 14 identity: expected ") == 0);
}

TEST_CASE("manifest: what is no JSON, and what is not there") {
    CHECK_THROWS_AS(static_cast<void>(engram::parse_manifest("{", "m.json")), ManifestError);
    CHECK_THROWS_AS(static_cast<void>(engram::parse_manifest("", "m.json")), ManifestError);
    CHECK_THROWS_AS(static_cast<void>(engram::parse_manifest("[]", "m.json")), ManifestError);
    const fixture::TempDir dir;
    CHECK_THROWS_WITH_AS(static_cast<void>(engram::load_manifest(dir.path() / "none.json")),
                         (dir.path() / "none.json: cannot be read: No such file or directory").c_str(), ManifestError);
    CHECK_THROWS_AS(static_cast<void>(engram::load_manifest(dir.path())), ManifestError);
}

TEST_CASE("manifest: any cut of a good one is refused, none crashes") {
    const std::string text = Checkpoint().json().dump();
    for (std::size_t size = 0; size < text.size(); size += 97) {
        CHECK_THROWS_AS(static_cast<void>(engram::parse_manifest(text.substr(0, size), "m.json")), ManifestError);
    }
}

#include "tests/table_fixture.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>

#include "table/packed.h"

namespace fixture {
namespace {

using Json = nlohmann::json;

std::string noise(std::uint64_t seed, std::size_t bytes) {
    std::string text(bytes, '\0');
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL;
    for (char& c : text) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        c = static_cast<char>(state >> 32);
    }
    return text;
}

std::string hex_sha256(std::string_view bytes) {
    return engram::to_hex(engram::sha256(bytes));
}

std::string tensor_name(std::uint32_t layer, const char* plane) {
    return "layers." + std::to_string(layer) + ".engram.embed." + plane;
}

// Written apart from the code under test: digests of a plane as the manifest describes them.
Json plane_json(const std::string& bytes, std::uint64_t segment_bytes) {
    Json segments = Json::array();
    std::string raw;
    for (std::size_t at = 0; at < bytes.size(); at += segment_bytes) {
        const engram::Digest digest = engram::sha256(std::string_view(bytes).substr(at, segment_bytes));
        segments.push_back(engram::to_hex(digest));
        raw.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    }
    return {{"bytes", bytes.size()}, {"digest", hex_sha256(raw)}, {"segments", segments}};
}

std::string identity(const LayerData& data, std::uint64_t segment_bytes, const Json& weight, const Json& scale) {
    std::string heads;
    for (const std::uint64_t size : data.head_sizes) heads += (heads.empty() ? "" : ",") + std::to_string(size);
    return hex_sha256("dsv41-engram-identity-v1\nlayer=" + std::to_string(data.layer) +
                      "\nrows=" + std::to_string(data.rows) + "\nhead_sizes=" + heads + "\nsegment_bytes=" +
                      std::to_string(segment_bytes) + "\nweight=F8_E4M3:256:" + weight["digest"].get<std::string>() +
                      "\nscale=F8_E8M0:8:" + scale["digest"].get<std::string>() + "\n");
}

}  // namespace

TempDir::TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "engram-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = name;
}

TempDir::~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
    file.flush();
    if (!file) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void flip_byte(const std::filesystem::path& path, std::uint64_t offset) {
    std::string bytes = read_file(path);
    bytes.at(offset) = static_cast<char>(bytes.at(offset) ^ 0x40);
    write_file(path, bytes);
}

std::string safetensors_bytes(const Json& header, const std::string& data) {
    const std::string text = header.dump();
    std::string bytes;
    for (unsigned shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(text.size() >> shift & 0xff);
    return bytes + text + data;
}

Checkpoint::Checkpoint(std::uint64_t seed, std::uint64_t segment_bytes) : segment_bytes_(segment_bytes) {
    geometry_.layer_ids = {1, 14};
    geometry_.vocab_size = 100;
    const auto sizes = engram::head_sizes(geometry_);
    Json layers = Json::array();
    Json rows = Json::array();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        LayerData data;
        data.layer = geometry_.layer_ids[i];
        data.head_sizes = sizes[i];
        data.rows = std::accumulate(sizes[i].begin(), sizes[i].end(), std::uint64_t{0});
        data.weights = noise(seed * 100 + data.layer, data.rows * engram::kWeightBytes);
        data.scales = noise(seed * 200 + data.layer, data.rows * engram::kScaleBytes);
        rows.push_back(data.rows);
        Json weight = plane_json(data.weights, segment_bytes);
        Json scale = plane_json(data.scales, segment_bytes);
        const std::string id = identity(data, segment_bytes, weight, scale);
        layers.push_back({{"layer", data.layer},
                          {"rows", data.rows},
                          {"head_sizes", data.head_sizes},
                          {"weight", std::move(weight)},
                          {"scale", std::move(scale)},
                          {"identity", id}});
        layers_.push_back(std::move(data));
    }
    manifest_ = {{"schema", 1},
                 {"checkpoint", {{"name", "synthetic"}}},
                 {"geometry",
                  {{"layer_ids", geometry_.layer_ids},
                   {"num_embeddings", rows},
                   {"max_ngram_size", geometry_.max_ngram_size},
                   {"n_heads", geometry_.n_heads},
                   {"head_dim", 256},
                   {"vocab_size", geometry_.vocab_size},
                   {"pad_token_id", 2},
                   {"compressed_vocab_size", 90}}},
                 {"row_format",
                  {{"weight_dtype", "F8_E4M3"},
                   {"weight_bytes", 256},
                   {"scale_dtype", "F8_E8M0"},
                   {"scale_bytes", 8},
                   {"row_bytes", 264}}},
                 {"segment_bytes", segment_bytes},
                 {"layers", layers}};
    for (const LayerData& data : layers_) write_shard(data, "F8_E4M3", {data.rows, 256});
    write_manifest();
}

const LayerData& Checkpoint::layer(std::uint32_t id) const {
    for (const LayerData& data : layers_) {
        if (data.layer == id) return data;
    }
    throw std::out_of_range("no such layer in the fixture");
}

Json& Checkpoint::json(std::uint32_t layer) {
    for (Json& entry : manifest_["layers"]) {
        if (entry["layer"] == layer) return entry;
    }
    throw std::out_of_range("no such layer in the fixture");
}

void Checkpoint::write_manifest() const {
    write_file(manifest_path(), manifest_.dump(1));
}

std::uint64_t Checkpoint::offset(std::uint32_t layer, const char* plane) {
    return json(layer)[plane]["offset"];
}

std::string Checkpoint::shard_name(std::uint32_t layer) {
    return "model-" + std::to_string(layer) + ".safetensors";
}

void Checkpoint::write_shard(const LayerData& data, const std::string& weight_dtype,
                             const std::vector<std::uint64_t>& shape) {
    // Another tensor first, of an odd size: planes start on no boundary, as in real shards.
    const std::string other = noise(7, 4099);
    const std::uint64_t weight_end = other.size() + data.weights.size();
    const Json header = {
        {"__metadata__", {{"format", "pt"}}},
        {"layers.0.other", {{"dtype", "U8"}, {"shape", {other.size()}}, {"data_offsets", {0, other.size()}}}},
        {tensor_name(data.layer, "weight"),
         {{"dtype", weight_dtype}, {"shape", shape}, {"data_offsets", {other.size(), weight_end}}}},
        {tensor_name(data.layer, "scale"),
         {{"dtype", "F8_E8M0"},
          {"shape", {data.rows, 8}},
          {"data_offsets", {weight_end, weight_end + data.scales.size()}}}}};
    write_file(shard_path(data.layer), safetensors_bytes(header, other + data.weights + data.scales));
    const std::uint64_t start = 8 + header.dump().size();
    for (const char* const plane : {"weight", "scale"}) {
        Json& entry = json(data.layer)[plane];
        entry["file"] = shard_name(data.layer);
        entry["tensor"] = tensor_name(data.layer, plane);
        entry["offset"] = start + (std::string(plane) == "weight" ? other.size() : weight_end);
    }
}

void Checkpoint::pack() {
    for (const LayerData& data : layers_) {
        const std::uint64_t scale_offset = (engram::kPackedHeaderBytes + data.weights.size() + 4095) /
                                           engram::kPackedHeaderBytes * engram::kPackedHeaderBytes;
        const Json header = {{"layer", data.layer},
                             {"rows", data.rows},
                             {"weight_offset", 4096},
                             {"scale_offset", scale_offset},
                             {"identity", json(data.layer)["identity"]}};
        std::string bytes = engram::kPackedMagic + header.dump();
        bytes.resize(engram::kPackedHeaderBytes, '\0');
        bytes += data.weights;
        bytes.resize(scale_offset, '\0');
        bytes += data.scales;
        const std::string name = "layer-" + std::to_string(data.layer) + ".dsv41pack";
        write_file(dir() / name, bytes);
        for (const char* const plane : {"weight", "scale"}) {
            Json& entry = json(data.layer)[plane];
            entry["file"] = name;
            entry["tensor"] = nullptr;
            entry["packed"] = true;
            entry["offset"] = std::string(plane) == "weight" ? 4096 : scale_offset;
        }
        std::filesystem::remove(shard_path(data.layer));
    }
    write_manifest();
}

}  // namespace fixture

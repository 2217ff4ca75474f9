// A small synthetic checkpoint on disk: two layers, each with its shard, and the manifest that describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "table/layout.h"
#include "table/manifest.h"

namespace fixture {

class TempDir {
  public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  private:
    std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, const std::string& bytes);
[[nodiscard]] std::string read_file(const std::filesystem::path& path);
void flip_byte(const std::filesystem::path& path, std::uint64_t offset);

// The bytes of a safetensors file: 8-byte length, header, data.
[[nodiscard]] std::string safetensors_bytes(const nlohmann::json& header, const std::string& data);

struct LayerData {
    std::uint32_t layer = 0;
    std::uint64_t rows = 0;
    std::vector<std::uint64_t> head_sizes;
    std::string weights;
    std::string scales;
};

class Checkpoint {
  public:
    static constexpr std::uint64_t kSegment = 65536;

    // Writes shards and manifest. Another seed gives other rows of the same shape.
    explicit Checkpoint(std::uint64_t seed = 1, std::uint64_t segment_bytes = kSegment);

    [[nodiscard]] const std::filesystem::path& dir() const noexcept { return dir_.path(); }
    [[nodiscard]] std::filesystem::path manifest_path() const { return dir() / "manifest.json"; }
    [[nodiscard]] std::filesystem::path shard_path(std::uint32_t layer) const { return dir() / shard_name(layer); }
    [[nodiscard]] const LayerData& layer(std::uint32_t id) const;
    [[nodiscard]] nlohmann::json& json() noexcept { return manifest_; }
    [[nodiscard]] nlohmann::json& json(std::uint32_t layer);
    void write_manifest() const;
    [[nodiscard]] engram::Manifest manifest() const { return engram::load_manifest(manifest_path()); }

    // Where a plane starts in its shard.
    [[nodiscard]] std::uint64_t offset(std::uint32_t layer, const char* plane);
    // Writes the shard anew, with another dtype or shape for the weight tensor (same bytes).
    void write_shard(const LayerData& data, const std::string& weight_dtype, const std::vector<std::uint64_t>& shape);
    // Turns the checkpoint into packed files and removes the shards.
    void pack();

  private:
    [[nodiscard]] static std::string shard_name(std::uint32_t layer);

    TempDir dir_;
    std::uint64_t segment_bytes_;
    engram::Geometry geometry_;
    std::vector<LayerData> layers_;
    nlohmann::json manifest_;
};

}  // namespace fixture

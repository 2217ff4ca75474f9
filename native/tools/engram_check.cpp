// engram_check: holds a checkpoint against its manifest, headers only (ident) or every byte (verify).
// Exit: 0 it is as the manifest says, 1 the check could not be made, 2 usage, 3 it is not.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "table/error.h"
#include "table/manifest.h"
#include "table/planes.h"
#include "table/segments.h"

namespace {

using Json = nlohmann::ordered_json;

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kCheckSaysNo = 3;

struct Options {
    std::string mode;
    std::string manifest;
    std::string model_dir;
    std::vector<std::uint32_t> layers;
    unsigned threads = 8;
    bool json = false;
};

struct LayerResult {
    const engram::LayerEntry* entry = nullptr;
    int status = kDone;
    double seconds = 0;
    std::string error;
};

LayerResult check_layer(const Options& options, const engram::Manifest& manifest, const engram::LayerEntry& entry) {
    LayerResult result{.entry = &entry, .error = {}};
    const auto start = std::chrono::steady_clock::now();
    try {
        const engram::LayerSource source = engram::resolve_layer(entry, options.model_dir);
        if (options.mode == "verify") {
            engram::ReadOptions read;
            read.threads = options.threads;
            engram::read_and_verify(source, manifest.segment_bytes, {}, read);
        }
    } catch (const engram::VerifyError& error) {
        result.status = kCheckSaysNo;
        result.error = error.what();
    } catch (const std::exception& error) {
        result.status = kFailed;
        result.error = error.what();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

Json plane_json(const engram::PlaneEntry& plane) {
    return {{"file", plane.file},
            {"tensor", plane.tensor ? Json(*plane.tensor) : Json(nullptr)},
            {"offset", plane.offset},
            {"bytes", plane.bytes},
            {"segments", plane.segments.size()}};
}

Json layer_json(const LayerResult& result) {
    const engram::LayerEntry& entry = *result.entry;
    return {{"layer", entry.layer},
            {"rows", entry.rows},
            {"identity", engram::to_hex(entry.identity)},
            {"ok", result.status == kDone},
            {"error", result.status == kDone ? Json(nullptr) : Json(result.error)},
            {"seconds", result.seconds},
            {"weight", plane_json(entry.weight)},
            {"scale", plane_json(entry.scale)}};
}

// A check that could not be made outranks one that says no: its answer is not known.
int overall(const std::vector<LayerResult>& results) {
    const auto has = [&](int status) {
        return std::any_of(results.begin(), results.end(), [&](const LayerResult& r) { return r.status == status; });
    };
    return has(kFailed) ? kFailed : has(kCheckSaysNo) ? kCheckSaysNo : kDone;
}

void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    if (std::fflush(stdout) != 0) throw engram::ResourceError("standard output cannot be written");
}

void report(const Options& options, const std::vector<LayerResult>& results) {
    if (options.json) {
        Json layers = Json::array();
        for (const LayerResult& result : results) layers.push_back(layer_json(result));
        const Json document = {
            {"schema", 1}, {"mode", options.mode}, {"ok", overall(results) == kDone}, {"layers", std::move(layers)}};
        print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    } else {
        for (const LayerResult& result : results) {
            const engram::LayerEntry& entry = *result.entry;
            print(fmt::format("layer={} rows={} identity={} {} in {:.1f} s\n", entry.layer, entry.rows,
                              engram::to_hex(entry.identity),
                              result.status != kDone     ? "FAILED"
                              : options.mode == "verify" ? "verified"
                                                         : "headers match",
                              result.seconds));
        }
    }
    for (const LayerResult& result : results) {
        if (result.status != kDone) {
            fmt::print(stderr, "engram_check: layer {}: {}\n", result.entry->layer, result.error);
        }
    }
}

int run(const Options& options) {
    const engram::Manifest manifest = engram::load_manifest(options.manifest);
    for (const std::uint32_t layer : options.layers) {
        if (manifest.find(layer) != nullptr) continue;
        fmt::print(stderr, "engram_check: --layers {}: {} has no such layer\n", layer, manifest.path);
        return kUsage;
    }
    std::vector<LayerResult> results;
    for (const engram::LayerEntry& entry : manifest.layers) {
        const auto& wanted = options.layers;
        if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), entry.layer) == wanted.end()) continue;
        results.push_back(check_layer(options, manifest, entry));
    }
    report(options, results);
    return overall(results);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Options options;
        CLI::App app("Holds a checkpoint's Engram tables against their manifest.", "engram_check");
        app.add_option("--mode", options.mode, "ident: headers only; verify: every byte")
            ->required()
            ->check(CLI::IsMember({"ident", "verify"}));
        app.add_option("--manifest", options.manifest, "manifest.json of the tables")->required();
        app.add_option("--model-dir", options.model_dir, "directory that the manifest's files are relative to")
            ->required();
        app.add_option("--layers", options.layers, "layers to check, comma separated (all of the manifest)")
            ->delimiter(',');
        app.add_option("--threads", options.threads, "threads that read")
            ->check(CLI::Range(1U, 1024U))
            ->capture_default_str();
        app.add_flag("--json", options.json, "print the result as JSON");
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError& error) {
            return app.exit(error) == 0 ? kDone : kUsage;
        }
        return run(options);
    } catch (const engram::VerifyError& error) {
        std::fprintf(stderr, "engram_check: %s\n", error.what());
        return kCheckSaysNo;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engram_check: %s\n", error.what());
        return kFailed;
    }
}

// Reads planes segment by segment, many at once, and holds every segment against the manifest.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "table/planes.h"

namespace engram {

struct ReadOptions {
    unsigned threads = 8;
    bool direct_io = true;  // when the file system takes it
    std::stop_token stop;
    // Called after each segment with the bytes done so far and in total; from worker threads, several at once.
    std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

// Where the bytes go; null: they are hashed and dropped.
struct PlaneTargets {
    std::byte* weights = nullptr;
    std::byte* scales = nullptr;
};

// Reads both planes with `options.threads` threads, which it starts and joins. Throws VerifyError for the first segment
// (in reading order: weights, then scales) that differs, ResourceError for an I/O error, Cancelled when stop is asked.
void read_and_verify(const LayerSource& source, std::uint64_t segment_bytes, const PlaneTargets& targets,
                     const ReadOptions& options);

}  // namespace engram

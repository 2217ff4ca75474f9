// What a remote table is opened with. Defaults are the seed runbook's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "reader/local_shard.h"
#include "transport/ofl.h"

namespace engram_remote {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Takes one line without its newline. Called from any of the reader's threads.
using LogSink = std::function<void(const std::string&)>;

struct Options {
    ofl::Endpoint endpoint;
    std::uint32_t layer = 0;
    std::uint32_t rank = 0;  // the rank's Engram head shard
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    ofl::Identity identity{};
    std::uint32_t max_rows = 0;  // of one lookup; staging holds as many
    ShardFiles shard;

    milliseconds timeout{100};          // of one lookup, then the local shard answers
    milliseconds retry{5000};           // between two attempts to attach
    bool required = false;              // opening fails when the server cannot be attached
    seconds log_every{60};              // counters line, when there was traffic; 0: only at close
    bool bounce = false;                // rows go through a buffer of their own and are copied to staging
    std::string key;                    // shared with the server; empty: none
    unsigned read_threads = 64;         // of the fallback
    bool direct_io = true;              // the fallback tries O_DIRECT
    milliseconds attach_limit{1000};    // of one attempt to attach
    milliseconds required_limit{5000};  // of all attempts while opening, when required
    LogSink log;                        // empty: stderr
};

// Writes "engram_remote: LINE" to stderr in one piece, so that lines of several processes do not mix.
void log_to_stderr(const std::string& line);

}  // namespace engram_remote

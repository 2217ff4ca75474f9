#include "reader/attacher.h"

#include <algorithm>
#include <utility>

#include "reader/lines.h"

namespace engram_remote {
namespace {

constexpr milliseconds kRepeat{60000};  // the same reason is said again after this

// The server may be ready or free a moment later; every other refusal stays one.
bool may_pass(ofl::Code code) {
    return code == ofl::Code::kRefusalNotReady || code == ofl::Code::kRefusalBusy || code == ofl::Code::kUnreachable ||
           code == ofl::Code::kTimeout || code == ofl::Code::kDisconnected;
}

}  // namespace

Attacher::Attacher(const Options& options, ofl::Staging staging, Stats& stats, Deliver deliver)
    : options_(options),
      staging_(staging),
      stats_(stats),
      deliver_(std::move(deliver)),
      generation_(static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())) {}

Attacher::~Attacher() {
    stop();
}

void Attacher::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

std::unique_ptr<ofl::Channel> Attacher::attach_now(ofl::Status& why) {
    constexpr milliseconds kPause{100};
    std::unique_ptr<ofl::Channel> channel;
    const ofl::Deadline limit = ofl::Clock::now() + options_.required_limit;
    for (;;) {
        const ofl::Deadline deadline = ofl::Clock::now() + options_.attach_limit;
        why = attempt(options_.required ? std::min(deadline, limit) : deadline, channel);
        if (why.ok() || !options_.required || !may_pass(why.code) || ofl::Clock::now() + kPause >= limit) break;
        std::this_thread::sleep_for(kPause);
    }
    return channel;
}

void Attacher::begin() {
    thread_ = std::thread([this] { run(); });
}

void Attacher::want() {
    {
        const std::lock_guard lock(mutex_);
        wanted_ = true;
    }
    wake_.notify_all();
}

ofl::Status Attacher::attempt(ofl::Deadline deadline, std::unique_ptr<ofl::Channel>& out) {
    not_before_ = ofl::Clock::now() + options_.retry;
    const ofl::OpenRequest request{.layer = options_.layer,
                                   .start = options_.start,
                                   .end = options_.end,
                                   .identity = options_.identity,
                                   .max_rows = options_.max_rows,
                                   .generation = ++generation_,
                                   .key = options_.key};
    ofl::Status status = ofl::connect(options_.endpoint, request, staging_, deadline, out);
    if (status.ok() && out->info().max_rows < options_.max_rows) {
        status = {ofl::Code::kRefusalCount, "the server takes lookups of at most " +
                                                std::to_string(out->info().max_rows) + " rows, staging holds " +
                                                std::to_string(options_.max_rows)};
        out.reset();
    }
    if (status.ok()) {
        stats_.attached();
        last_reason_.clear();
        options_.log(attach_line(options_, out->info()));
        if (!std::exchange(ever_attached_, true)) {
            options_.log("Engram table rows from the remote (layer " + std::to_string(options_.layer) + ")");
        }
        return status;
    }
    if (status.refused()) stats_.refusal();
    report(status);
    return status;
}

// A server that is away for hours says so once a minute, not with every attempt.
void Attacher::report(const ofl::Status& status) {
    const auto now = ofl::Clock::now();
    if (status.reason == last_reason_ && now - last_report_ < kRepeat) return;
    last_reason_ = status.reason;
    last_report_ = now;
    options_.log(failure_line(options_, status));
}

void Attacher::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || wanted_; });
        wake_.wait_until(lock, not_before_, [this] { return stop_; });
        if (stop_) return;
        lock.unlock();
        std::unique_ptr<ofl::Channel> channel;
        try {
            if (attempt(ofl::Clock::now() + options_.attach_limit, channel).ok()) {
                {
                    // Before delivery: the channel may be lost, and wanted again, at once.
                    const std::lock_guard held(mutex_);
                    wanted_ = false;
                }
                deliver_(std::move(channel));
            }
        } catch (const std::exception& error) {
            // Out of memory or threads; the next attempt may fare better.
            options_.log("attaching layer " + std::to_string(options_.layer) + ": " + error.what());
        }
        lock.lock();
    }
}

}  // namespace engram_remote

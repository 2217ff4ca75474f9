// Attaches to the table server in the background, so that no lookup ever waits for a connection to be made.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "reader/options.h"
#include "reader/stats.h"
#include "transport/ofl.h"

namespace engram_remote {

class Attacher {
  public:
    // Takes a channel that has just been opened. Called from the attacher's thread.
    using Deliver = std::function<void(std::unique_ptr<ofl::Channel>)>;

    // `options` and `stats` outlive the attacher; `staging` is where channels place rows.
    Attacher(const Options& options, ofl::Staging staging, Stats& stats, Deliver deliver);
    ~Attacher();  // stops
    Attacher(const Attacher&) = delete;
    Attacher& operator=(const Attacher&) = delete;

    // On the calling thread, before begin(): one attempt, or with Options::required attempts until required_limit.
    // Returns nothing when none succeeded; `why` then says so.
    std::unique_ptr<ofl::Channel> attach_now(ofl::Status& why);

    // Starts the thread.
    void begin();
    // Ends the thread; waits for an attempt under way, at most Options::attach_limit. Idempotent.
    void stop() noexcept;
    // The channel is gone: attach again, at most one attempt each Options::retry.
    void want();

  private:
    void run();
    ofl::Status attempt(ofl::Deadline deadline, std::unique_ptr<ofl::Channel>& out);
    void report(const ofl::Status& status);

    const Options& options_;
    ofl::Staging staging_;
    Stats& stats_;
    Deliver deliver_;
    std::uint64_t generation_;
    ofl::Clock::time_point not_before_{};  // of the next attempt
    bool ever_attached_ = false;
    std::string last_reason_;
    ofl::Clock::time_point last_report_{};

    std::mutex mutex_;
    std::condition_variable wake_;
    bool wanted_ = false;
    bool stop_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace engram_remote

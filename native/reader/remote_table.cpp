#include "reader/remote_table.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "reader/attacher.h"
#include "reader/lines.h"
#include "reader/page_buffer.h"

namespace engram_remote {
namespace {

RowPlanes planes_of(const PageBuffer& buffer, std::uint32_t max_rows) {
    return {buffer.data(), buffer.data() + std::size_t{max_rows} * ofl::kWeightBytes};
}

// Wakes a thread that sleeps in poll().
class Event {
  public:
    Event() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    ~Event() { ::close(fd_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    [[nodiscard]] int fd() const noexcept { return fd_; }
    void set() const noexcept {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);  // cannot fail: it never fills up
    }
    void clear() const noexcept {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
    }

  private:
    int fd_;
};

Options checked(Options options) {
    if (!options.log) options.log = log_to_stderr;
    const std::string name = table_name(options);
    if (options.start >= options.end || options.end > options.shard.rows) {
        throw std::runtime_error(name + ": rows [" + std::to_string(options.start) + ", " +
                                 std::to_string(options.end) + ") of " + std::to_string(options.shard.rows));
    }
    if (options.end > UINT32_MAX) throw std::runtime_error(name + ": row ids on the wire have 32 bits");
    if (options.max_rows == 0) throw std::runtime_error(name + ": staging of 0 rows");
    return options;
}

}  // namespace

struct RemoteTable::Impl {
    enum class State : std::uint8_t { kIdle, kPosted, kDone };

    explicit Impl(Options given)
        : options(checked(std::move(given))),
          shard(std::in_place, options.shard, options.read_threads, options.direct_io),
          event(std::in_place),
          memory(std::size_t{options.max_rows} * ofl::kRowBytes),
          bounce(options.bounce ? memory.bytes() : 0),
          staging(planes_of(memory, options.max_rows)),
          landing(options.bounce ? planes_of(bounce, options.max_rows) : staging),
          plan(options.start, options.end, options.max_rows),
          attacher(options, {landing.weights, landing.scales, options.max_rows}, stats,
                   [this](std::unique_ptr<ofl::Channel> fresh) { take(std::move(fresh)); }) {}

    // The attacher's thread.
    void take(std::unique_ptr<ofl::Channel> fresh) {
        const std::lock_guard lock(mutex);
        mode = mode_text(options, fresh->info().mode);
        offered = std::move(fresh);
        event->set();
    }

    template <typename Id>
    void enqueue(std::span<const Id> ids) {
        const std::lock_guard lock(mutex);
        if (stop) throw std::runtime_error(table_name(options) + ": the table is closed");
        if (state != State::kIdle) {
            throw std::runtime_error(table_name(options) + ": a lookup is in flight; wait() for it first");
        }
        try {
            plan.build(ids);
        } catch (const std::out_of_range& error) {
            throw std::out_of_range(table_name(options) + ": " + error.what());
        } catch (const std::invalid_argument& error) {
            throw std::invalid_argument(table_name(options) + ": " + error.what());
        }
        state = State::kPosted;
        event->set();
    }

    void wait() {
        std::unique_lock lock(mutex);
        if (state == State::kIdle)
            throw std::runtime_error(table_name(options) + ": wait() without a lookup in flight");
        done.wait(lock, [this] { return state == State::kDone; });
        state = State::kIdle;
        if (!problem.empty()) throw std::runtime_error(std::exchange(problem, {}));
    }

    // The proxy's thread, from here to run().
    void adopt(std::unique_ptr<ofl::Channel> fresh) {
        if (channel) channel->retire();
        channel = std::move(fresh);
    }

    void lose(const ofl::Status& status) {
        channel->retire();
        channel.reset();
        stats.detached();
        options.log("fallback: " + table_name(options) + ": " + status.reason);
        attacher.want();
    }

    bool from_remote() {
        if (!channel) return false;
        const auto begun = ofl::Clock::now();
        const ofl::Status status = channel->lookup(++epoch, plan.unique(), begun + options.timeout);
        if (status.ok()) {
            const std::chrono::duration<double, std::micro> took = ofl::Clock::now() - begun;
            stats.remote(plan.unique().size(), took.count());
            plan.expand(landing, staging);
            return true;
        }
        if (status.refused()) {
            stats.refusal();
        } else {
            stats.transport_error();
        }
        lose(status);
        return false;
    }

    void from_local() {
        shard->read(plan.unique(), staging);
        stats.fallback(plan.unique().size());
        plan.expand(staging, staging);
    }

    std::string answer() {
        try {
            if (plan.unique().empty()) {
                plan.expand(staging, staging);
            } else if (!from_remote()) {
                from_local();
            }
            return {};
        } catch (const std::exception& error) {
            return table_name(options) + ": no rows from the remote, and none from the local shard: " + error.what();
        }
    }

    // A server that goes away between two lookups is noticed here, not by the next lookup.
    void check_liveness() {
        pollfd watched{channel->liveness_fd(), POLLIN | POLLRDHUP, 0};
        if (watched.fd < 0 || ::poll(&watched, 1, 0) <= 0) return;
        lose({ofl::Code::kDisconnected, options.endpoint.text + ": the server closed the connection"});
    }

    void log_counters() {
        const std::uint64_t lookups = stats.lookups();
        if (lookups == logged_lookups) return;
        logged_lookups = lookups;
        options.log(counters_line(options, stats.read()));
    }

    void sleep() {
        std::array<pollfd, 2> watched{{{event->fd(), POLLIN, 0}, {-1, POLLIN | POLLRDHUP, 0}}};
        if (channel) watched[1].fd = channel->liveness_fd();
        int limit = -1;
        if (options.log_every.count() > 0) {
            const auto left = std::chrono::ceil<milliseconds>(next_line - ofl::Clock::now());
            limit = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
        }
        (void)::poll(watched.data(), watched.size(), limit);
        event->clear();
        if (watched[1].revents != 0) check_liveness();
    }

    void log_when_due() {
        if (options.log_every.count() == 0 || ofl::Clock::now() < next_line) return;
        log_counters();
        next_line = ofl::Clock::now() + options.log_every;
    }

    void run() {
        std::unique_lock lock(mutex);
        for (;;) {
            log_when_due();
            if (offered) {
                auto fresh = std::move(offered);
                lock.unlock();
                adopt(std::move(fresh));
                lock.lock();
            }
            if (state == State::kPosted) {
                lock.unlock();
                std::string found = answer();
                lock.lock();
                problem = std::move(found);
                state = State::kDone;
                done.notify_all();
            } else if (stop) {
                break;
            } else {
                lock.unlock();
                sleep();
                lock.lock();
            }
        }
        lock.unlock();
        if (channel) channel->retire();
        channel.reset();
        log_counters();
    }

    const Options options;
    std::optional<LocalShard> shard;  // both until close()
    std::optional<Event> event;
    PageBuffer memory;
    PageBuffer bounce;
    RowPlanes staging;
    RowPlanes landing;  // where channels place rows
    Stats stats;

    std::mutex mutex;
    std::condition_variable done;
    State state = State::kIdle;
    bool stop = false;
    std::string problem;
    std::string mode = "local";
    std::unique_ptr<ofl::Channel> offered;
    LookupPlan plan;  // enqueue()'s while idle, the proxy's while posted

    // The proxy's own.
    std::unique_ptr<ofl::Channel> channel;
    std::uint64_t epoch = 0;
    std::uint64_t logged_lookups = 0;
    ofl::Clock::time_point next_line = ofl::Clock::now();

    Attacher attacher;
    std::thread proxy;
};

RemoteTable::RemoteTable(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
    Impl& impl = *impl_;
    const Options& given = impl.options;
    given.log("fallback reader: " + impl.shard->mode());
    given.log("Engram remote staging (" + std::to_string(given.max_rows) + " rows)");
    ofl::Status why;
    if (auto channel = impl.attacher.attach_now(why)) {
        impl.take(std::move(channel));
    } else if (given.required) {
        const std::string refused = why.refused() ? failure_line(given, why) : table_name(given) + ": " + why.reason;
        throw std::runtime_error(refused + " (VLLM_ENGRAM_REMOTE_REQUIRED=1)");
    } else {
        impl.attacher.want();
    }
    impl.next_line = ofl::Clock::now() + given.log_every;
    impl.attacher.begin();
    impl.proxy = std::thread([&impl] { impl.run(); });
}

RemoteTable::~RemoteTable() {
    close();
}

void RemoteTable::close() noexcept {
    {
        const std::lock_guard lock(impl_->mutex);
        if (!impl_->event) return;  // closed already
        impl_->stop = true;
        impl_->event->set();
    }
    if (impl_->proxy.joinable()) impl_->proxy.join();
    impl_->attacher.stop();
    const std::lock_guard lock(impl_->mutex);
    impl_->offered.reset();  // a channel that came too late
    // Staging lives on with the table: tensors may still look at it.
    impl_->shard.reset();
    impl_->event.reset();
}

void RemoteTable::enqueue(std::span<const std::int64_t> ids) {
    impl_->enqueue(ids);
}
void RemoteTable::enqueue(std::span<const std::int32_t> ids) {
    impl_->enqueue(ids);
}
void RemoteTable::wait() {
    impl_->wait();
}
RowPlanes RemoteTable::staging() const noexcept {
    return impl_->staging;
}
std::uint32_t RemoteTable::max_rows() const noexcept {
    return impl_->options.max_rows;
}
Counters RemoteTable::stats() const {
    return impl_->stats.read();
}
std::string RemoteTable::mode() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->mode;
}

}  // namespace engram_remote

#include "server/loading.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "table/error.h"

namespace engram::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr std::chrono::seconds kLogEvery{5};
constexpr double kEnoughHuge = 0.99;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double gib(std::uint64_t bytes) {
    return static_cast<double>(bytes) / kGib;
}

}  // namespace

Loading::Loading(LoadPlan plan, Registry& registry, const Log& log)
    : plan_(std::move(plan)), registry_(registry), log_(log), done_event_(::eventfd(0, EFD_CLOEXEC)) {
    if (done_event_ < 0) throw ResourceError("no eventfd for the loader");
    thread_ = std::jthread([this](const std::stop_token& stop) {
        try {
            load_all(stop);
        } catch (...) {
            error_ = std::current_exception();
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(done_event_, &one, sizeof one);
    });
}

Loading::~Loading() {
    if (thread_.joinable()) {
        thread_.request_stop();
        thread_.join();
    }
    ::close(done_event_);
}

void Loading::finish() {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(error_);
}

void Loading::load_all(const std::stop_token& stop) {
    std::uint64_t total = 0;
    for (const std::uint32_t layer : plan_.layers) {
        if (const LayerEntry* const entry = plan_.manifest->find(layer)) total += entry->bytes();
    }
    // All of it before any of it: half an hour into loading is too late to learn that the second table does not fit.
    require_memory(total, available_memory());
    const Clock::time_point start = Clock::now();
    for (const std::uint32_t layer : plan_.layers) load_one(layer, stop);
    log_.line(
        fmt::format("ready: tables {}, {:.1f} GiB in {:.1f} s", plan_.layers.size(), gib(total), seconds_since(start)));
}

void Loading::load_one(std::uint32_t layer, const std::stop_token& stop) {
    const Clock::time_point start = Clock::now();
    std::atomic<Clock::rep> next_line{(start + kLogEvery).time_since_epoch().count()};
    LoadOptions options;
    options.huge_pages = plan_.huge_pages;
    options.read.threads = plan_.threads;
    options.read.stop = stop;
    options.read.progress = [&](std::uint64_t done, std::uint64_t total) {
        const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
        registry_.set_progress(layer, share);
        const Clock::time_point now = Clock::now();
        Clock::rep due = next_line.load();
        // One of the reading threads wins the right to write the line.
        if (now.time_since_epoch().count() < due) return;
        if (!next_line.compare_exchange_strong(due, (now + kLogEvery).time_since_epoch().count())) return;
        log_.line(fmt::format("layer {}: {:.0f} % verified, {:.1f} of {:.1f} GiB", layer, share * 100, gib(done),
                              gib(total)));
    };
    log_.line(fmt::format("layer {}: loading from {}", layer, plan_.model_dir.string()));
    Table table = load_table(*plan_.manifest, layer, plan_.model_dir, options);
    for (const CorruptRow& fault : plan_.corrupt) {
        if (fault.layer != layer) continue;
        table.corrupt_row(fault.row);
        log_.line(fmt::format("FAULT: row {} of layer {} was corrupted on purpose", fault.row, layer));
    }
    const double took = seconds_since(start);
    const Residency residency = table.residency();
    const double share =
        residency.resident == 0 ? 0.0 : static_cast<double>(residency.huge) / static_cast<double>(residency.resident);
    log_.line(fmt::format("layer {}: verified, rows {}, {:.1f} GiB in {:.1f} s, huge pages {:.1f} %, identity {}",
                          layer, table.rows(), gib(table.bytes()), took, share * 100, to_hex(table.identity())));
    if (plan_.huge_pages && share < kEnoughHuge) {
        log_.line(
            fmt::format("WARNING: huge pages back only {:.1f} % of layer {}: lookups will be slower; see "
                        "/sys/kernel/mm/transparent_hugepage/enabled",
                        share * 100, layer));
    }
    registry_.publish(std::move(table), took);
}

}  // namespace engram::server

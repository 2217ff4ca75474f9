#include "server/serve.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "server/control.h"
#include "server/loading.h"
#include "server/pid_file.h"
#include "server/proc.h"
#include "server/signals.h"
#include "server/status.h"
#include "table/error.h"

namespace engram::server {
namespace {

// A usage error that only shows once the manifest or the network is looked at.
class UsageError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

std::string read_key(const std::string& path, const Log& log) {
    if (path.empty()) return {};
    std::ifstream file(path, std::ios::binary);
    std::string key{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file) throw ResourceError(fmt::format("--key-file {}: cannot be read: {}", path, std::strerror(errno)));
    // An empty key would mean no authentication at all.
    if (key.empty()) throw ResourceError(fmt::format("--key-file {}: it is empty", path));
    struct stat info{};
    if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
        log.line(fmt::format("WARNING: the key file {} can be read by others: chmod 600 {}", path, path));
    }
    return key;
}

std::vector<std::uint32_t> choose_layers(const Manifest& manifest, const std::vector<std::uint32_t>& wanted) {
    std::vector<std::uint32_t> layers;
    if (wanted.empty()) {
        for (const LayerEntry& entry : manifest.layers) layers.push_back(entry.layer);
        return layers;
    }
    for (const std::uint32_t layer : wanted) {
        if (manifest.find(layer) == nullptr) {
            throw UsageError(fmt::format("--layers {}: {} has no such layer", layer, manifest.path));
        }
        if (std::find(layers.begin(), layers.end(), layer) == layers.end()) layers.push_back(layer);
    }
    return layers;
}

void listen_all(ofl::Server& server, const std::vector<std::string>& addresses) {
    for (const std::string& address : addresses) {
        const ofl::Status status = server.listen(address);
        if (status.ok()) continue;
        const std::string message = fmt::format("cannot listen on {}: {}", address, status.reason);
        if (status.code == ofl::Code::kInvalid) throw UsageError(message);
        throw ResourceError(message);
    }
}

std::string render_status(const ofl::Server& server, const Registry& registry,
                          std::chrono::system_clock::time_point started) {
    using Seconds = std::chrono::duration<double>;
    ServerFacts facts;
    facts.ready = registry.ready();
    facts.pid = ::getpid();
    facts.started_at = Seconds(started.time_since_epoch()).count();
    facts.uptime_s = Seconds(std::chrono::system_clock::now() - started).count();
    facts.memory = own_memory();
    facts.tables = registry.tables();
    facts.listeners = server.listeners();
    facts.stats = server.stats();
    return status_json(facts).dump();
}

// The control thread looks at server and registry, so it ends before they do, whatever ends serve().
struct StopControl {
    Control& control;
    ~StopControl() { control.stop(); }
};

// Until a signal comes; throws what stopped the loader, if anything did.
void wait_for_end(const StopSignals& signals, Loading& loading, const Log& log) {
    bool loaded = false;
    for (;;) {
        // A negative descriptor is skipped by poll().
        pollfd waits[] = {{signals.fd(), POLLIN, 0}, {loaded ? -1 : loading.done_fd(), POLLIN, 0}};
        if (::poll(waits, 2, -1) < 0 && errno != EINTR) throw ResourceError("poll failed in the main loop");
        if (const auto signal = signals.take()) {
            log.line(fmt::format("stopping on {}", *signal == SIGTERM  ? "SIGTERM"
                                                   : *signal == SIGINT ? "SIGINT"
                                                                       : "SIGHUP"));
            return;
        }
        if (!loaded && waits[1].revents != 0) {
            loaded = true;
            loading.finish();
        }
    }
}

void serve(const ServeOptions& options, const StopSignals& signals, const Log& log) {
    const auto started = std::chrono::system_clock::now();
    const FaultPlan faults = parse_faults(options.faults);
    const Manifest manifest = load_manifest(options.manifest);
    const std::vector<std::uint32_t> layers = choose_layers(manifest, options.layers);
    ofl::ServerOptions server_options;
    server_options.max_rows = options.max_rows;
    server_options.max_connections = options.max_connections;
    server_options.key = read_key(options.key_file, log);
    server_options.faults = faults.transport;

    // Sockets before threads, threads before loading: a port in use or a live server fails at once, and a reader that
    // comes early is told -107. Everything below is taken down in the reverse order.
    Control control(options.control);
    Registry registry(manifest, layers, options.threads);
    ofl::Server server(server_options, registry);
    listen_all(server, options.listen);
    const PidFile pid_file(options.pid_file);
    for (const std::string& listener : server.listeners()) log.line(fmt::format("listening {}", listener));
    if (const ofl::Status status = server.start(); !status.ok()) {
        throw ResourceError(fmt::format("cannot start: {}", status.reason));
    }
    control.start([&] { return render_status(server, registry, started); });
    const StopControl stop_control{control};
    Loading loading({.manifest = &manifest,
                     .layers = layers,
                     .model_dir = options.model_dir,
                     .threads = options.threads,
                     .huge_pages = !options.no_huge_pages,
                     .corrupt = faults.corrupt},
                    registry, log);
    wait_for_end(signals, loading, log);
}

}  // namespace

int run_serve(const ServeOptions& options) {
    const Log standard;
    try {
        const StopSignals signals;
        const Log* log = &standard;
        std::optional<Log> file;
        if (!options.log.empty()) log = &file.emplace(options.log);
        try {
            serve(options, signals, *log);
            log->line("stopped");
            return kDone;
        } catch (const std::exception& error) {
            // Who started the server reads stderr; who looks later reads the log.
            if (log != &standard) log->line(error.what());
            throw;
        }
    } catch (const VerifyError& error) {
        standard.line(fmt::format("refusing to serve: {}", error.what()));
        return kCheckSaysNo;
    } catch (const UsageError& error) {
        standard.line(error.what());
        return kUsage;
    } catch (const std::invalid_argument& error) {
        standard.line(error.what());
        return kUsage;
    } catch (const std::exception& error) {
        standard.line(error.what());
        return kFailed;
    }
}

}  // namespace engram::server

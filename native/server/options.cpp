#include "server/options.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstring>

#include "server/status.h"

namespace engram::server {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr std::uint32_t kMostRows = std::uint32_t{1} << 24;
constexpr std::uint32_t kMostConnections = 65536;

CLI::App* add_serve(CLI::App& app, ServeOptions& options) {
    CLI::App* const serve = app.add_subcommand("serve", "load and verify the tables, then serve their rows");
    serve->add_option("--manifest", options.manifest, "manifest.json of the tables")->required();
    serve->add_option("--model-dir", options.model_dir, "directory that the manifest's files are relative to")
        ->required();
    serve->add_option("--listen", options.listen, "ADDRESS:PORT to listen on; may be given several times")
        ->required()
        ->take_all();
    serve->add_option("--control", options.control, "path of the control socket")->required();
    serve->add_option("--threads", options.threads, "threads that load and gather")
        ->check(CLI::Range(1U, kMaxThreads))
        ->capture_default_str();
    serve->add_option("--max-rows", options.max_rows, "rows of the largest lookup")
        ->check(CLI::Range(std::uint32_t{1}, kMostRows))
        ->capture_default_str();
    serve->add_option("--max-connections", options.max_connections, "connections at a time")
        ->check(CLI::Range(std::uint32_t{1}, kMostConnections))
        ->capture_default_str();
    serve->add_option("--key-file", options.key_file, "file with the shared key; readers without it are refused");
    serve->add_option("--log", options.log, "append log lines to this file instead of stderr");
    serve->add_option("--pid-file", options.pid_file, "write the process id here; removed at exit");
    serve->add_option("--layers", options.layers, "layers to serve, comma separated (all of the manifest)")
        ->delimiter(',');
    serve->add_flag("--no-huge-pages", options.no_huge_pages, "keep the tables on small pages");
#ifdef OFL_FAULTS
    serve
        ->add_option("--fault", options.faults,
                     "corrupt=LAYER:ROW, delay-ms=N, half-frame=N, garbage=N or drop-open=N; may be given several "
                     "times")
        ->take_all();
#endif
    return serve;
}

CLI::App* add_status(CLI::App& app, StatusOptions& options) {
    CLI::App* const status = app.add_subcommand("status", "show what a running server says of itself");
    status->add_option("--control", options.control, "path of the control socket")->required();
    status->add_flag("--json", options.json, "print the status document");
    status
        ->add_option("--wait-ready", options.wait_ready_s,
                     "wait up to this many seconds until every table is verified; exit 3 when it is not")
        ->check(CLI::Range(0.0, 86400.0));
    return status;
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
    CLI::App app("Serves the rows of Engram tables that it holds in RAM.", "engram_server");
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string("engram_server ") + version());
    ServeOptions serve;
    StatusOptions status;
    const CLI::App* const serve_command = add_serve(app, serve);
    add_status(app, status);
    try {
        app.parse(argc, argv);
        for (const std::string& address : serve.listen) {
            if (const auto problem = listen_problem(address)) throw CLI::ValidationError("--listen", *problem);
        }
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? kDone : kUsage;
    }
    if (serve_command->parsed()) return serve;
    return status;
}

std::optional<std::string> listen_problem(std::string_view address) {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string_view::npos || colon + 1 == address.size()) {
        return fmt::format("'{}' has no port: write ADDRESS:PORT, an IPv6 address in brackets", address);
    }
    std::string host(address.substr(0, colon));
    const bool bracketed = host.starts_with('[') && host.ends_with(']');
    if (bracketed) host = host.substr(1, host.size() - 2);
    const std::string wildcard = fmt::format(
        "'{}' would listen on every network of this host, and rows are sent unencrypted: name the address of one link",
        address);
    if (host.empty() || host == "*") return wildcard;
    in_addr v4{};
    in6_addr v6{};
    // inet_aton also takes the short spellings of 0.0.0.0.
    if (::inet_aton(host.c_str(), &v4) != 0 && v4.s_addr == INADDR_ANY) return wildcard;
    if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
        std::array<unsigned char, 16> mapped{};
        mapped[10] = mapped[11] = 0xff;  // ::ffff:0.0.0.0
        const bool any = IN6_IS_ADDR_UNSPECIFIED(&v6) || std::memcmp(v6.s6_addr, mapped.data(), mapped.size()) == 0;
        if (any) return wildcard;
        if (!bracketed) return fmt::format("'{}': write an IPv6 address in brackets: [{}]:PORT", address, host);
    }
    return std::nullopt;
}

}  // namespace engram::server

#include <cstdio>
#include <exception>
#include <variant>

#include "server/options.h"
#include "server/serve.h"

namespace {

struct Run {
    int operator()(const engram::server::ServeOptions& options) const { return engram::server::run_serve(options); }
    int operator()(const engram::server::StatusOptions& options) const { return engram::server::run_status(options); }
    int operator()(int settled) const { return settled; }
};

}  // namespace

int main(int argc, char** argv) {
    try {
        return std::visit(Run{}, engram::server::parse_command_line(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engram_server: %s\n", error.what());
        return engram::server::kFailed;
    }
}

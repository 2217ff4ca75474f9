#include "server/pid_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "table/error.h"

namespace engram::server {

PidFile::PidFile(std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    std::ofstream file(path_, std::ios::trunc);
    file << ::getpid() << '\n';
    file.flush();
    if (!file) throw ResourceError(fmt::format("--pid-file {}: {}", path_, std::strerror(errno)));
}

PidFile::~PidFile() {
    if (path_.empty()) return;
    std::ifstream file(path_);
    long held = 0;
    // A successor may have written its own.
    if (file >> held && held == ::getpid()) ::unlink(path_.c_str());
}

}  // namespace engram::server

// A child process under test: its output is kept, and it never outlives the test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/table_fixture.h"

namespace fixture {

class Child {
  public:
    explicit Child(const std::vector<std::string>& argv);
    ~Child();  // kills it if it still runs
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    void signal(int number) const;
    // The exit status, 128 + signal, or nothing when it is still running after that long.
    std::optional<int> wait(std::chrono::milliseconds patience = std::chrono::seconds(30));
    [[nodiscard]] std::string out() const { return read_file(dir_.path() / "out"); }
    [[nodiscard]] std::string err() const { return read_file(dir_.path() / "err"); }

  private:
    TempDir dir_;
    pid_t pid_ = -1;
    std::optional<int> status_;
};

struct Finished {
    int status = -1;
    std::string out;
    std::string err;
};

// Runs to the end; a program that hangs is killed and has status -1.
Finished run(const std::vector<std::string>& argv);

}  // namespace fixture

// The control socket: a unix socket, mode 0600. Whoever connects is sent the status document, and the connection ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace engram::server {

class Control {
  public:
    // Binds the socket; the path of a dead server's socket is taken over, a live server's is refused (ResourceError).
    // Sets the umask for a moment: before other threads exist.
    explicit Control(std::string path);
    ~Control();  // stops, and removes the socket if it is still ours
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    // Starts the one thread that answers; stop() or the destructor joins it. `render` is called on that thread.
    void start(std::function<std::string()> render);
    void stop() noexcept;

  private:
    void answer_all();

    std::string path_;
    int listener_ = -1;
    int stop_event_ = -1;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    std::function<std::string()> render_;
    std::thread thread_;
};

// What the server behind `path` says. Throws ResourceError that says how it failed.
[[nodiscard]] std::string ask_control(const std::string& path, std::chrono::milliseconds patience);

}  // namespace engram::server

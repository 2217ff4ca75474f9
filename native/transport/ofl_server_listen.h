// Listening sockets: one for each address that the operator named, never a wildcard.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/ofl.h"
#include "transport/ofl_socket.h"

namespace ofl {

// ADDRESS:PORT with IPv6 in brackets; port 0 is allowed. Pure.
Status split_listen_address(std::string_view text, std::string& host, std::uint16_t& port);

// kInvalid: the address is not one to listen on; kUnreachable: the system refused it.
Status open_listener(const std::string& address, net::Fd& out, std::string& bound);

}  // namespace ofl

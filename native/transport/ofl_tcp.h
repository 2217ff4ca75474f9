// The TCP backend of the reader's side: a Channel over one connection. Chosen by connect() for tcp:// endpoints.
#pragma once

#include <memory>

#include "transport/ofl.h"
#include "transport/ofl_socket.h"

namespace ofl {

Status connect_tcp(const Endpoint& endpoint, const OpenRequest& request, const Staging& staging, Deadline deadline,
                   std::unique_ptr<Channel>& out);

// The handshake alone, over a stream that is connected already; connect_tcp() ends with it.
Status open_tcp(net::Fd fd, const Endpoint& endpoint, const OpenRequest& request, const Staging& staging,
                Deadline deadline, std::unique_ptr<Channel>& out);

}  // namespace ofl

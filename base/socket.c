/* socket.c - see socket.h.
 *
 * Small records must not wait for an acknowledgement of the ones before (TCP_NODELAY): a step of a
 * small model is over before Nagle's timer is. */
#include "base/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 512 };

static enum status socket_error(struct err *e, const char *doing) {
    return err_set(e, STATUS_IO, "%s: %s", doing, strerror(errno));
}

static void set_options(int fd) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

enum status socket_listen(int *fd, bool loopback, int *port, struct err *e) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return socket_error(e, "opening a socket for the other ranks");
    const bool fine = bind(*fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                      listen(*fd, LISTEN_BACKLOG) == 0 &&
                      getsockname(*fd, (struct sockaddr *)&address, &size) == 0;
    if (!fine) {
        socket_error(e, "listening for the other ranks");
        socket_close(fd);
        return e ? e->status : STATUS_IO;
    }
    *port = ntohs(address.sin_port);
    return STATUS_OK;
}

int socket_accept(int listener) {
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) set_options(fd);
    return fd;
}

/* True when the connection that was begun is there. */
static bool finish_connect(int fd, int timeout_ms) {
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int failure = 0;
    socklen_t size = sizeof failure;
    if (poll(&wait, 1, timeout_ms) != 1) return false;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) != 0) return false;
    errno = failure;
    return failure == 0;
}

enum status socket_connect(int *fd, const char *address, int port, int timeout_ms, struct err *e) {
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    char service[16];
    *fd = -1;
    snprintf(service, sizeof service, "%d", port);
    FAIL_IF(getaddrinfo(address, service, &hints, &found) != 0, STATUS_INVALID,
            "%s is not an address", address);
    errno = ETIMEDOUT;
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool fine = *fd >= 0;
    if (fine && connect(*fd, found->ai_addr, found->ai_addrlen) != 0)
        fine = errno == EINPROGRESS && finish_connect(*fd, timeout_ms);
    freeaddrinfo(found);
    if (fine) {
        set_options(*fd);
        return STATUS_OK;
    }
    err_set(e, STATUS_IO, "connecting to %s port %d: %s", address, port, strerror(errno));
    socket_close(fd);
    return STATUS_IO;
}

void socket_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static bool try_later(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int64_t socket_send(int fd, const void *bytes, size_t count) {
    const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    return try_later() ? 0 : -1;
}

int64_t socket_receive(int fd, void *bytes, size_t capacity) {
    const ssize_t got = recv(fd, bytes, capacity, 0);
    if (got > 0) return got;
    return got < 0 && try_later() ? 0 : -1;
}

void socket_addresses(struct str *out) {
    struct ifaddrs *all = NULL;
    str_append(out, "127.0.0.1");
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char text[INET_ADDRSTRLEN];
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
        if (i->ifa_flags & IFF_LOOPBACK || !(i->ifa_flags & IFF_UP)) continue;
        const struct sockaddr_in *const address = (const struct sockaddr_in *)i->ifa_addr;
        if (!inet_ntop(AF_INET, &address->sin_addr, text, sizeof text)) continue;
        str_appendf(out, " %s", text);
    }
    freeifaddrs(all);
}

void socket_host_name(char *name, size_t size) {
    if (gethostname(name, size) != 0) snprintf(name, size, "this machine");
    name[size - 1] = 0;
}

enum status socket_random(void *bytes, size_t count, struct err *e) {
    FAIL_IF(getrandom(bytes, count, 0) != (ssize_t)count, STATUS_IO,
            "the system gives no random numbers");
    return STATUS_OK;
}

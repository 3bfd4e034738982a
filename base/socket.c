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
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { LISTEN_BACKLOG = 512, BOOT_ID_MAX = 64 };

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

int64_t socket_send_more(int fd, const void *bytes, size_t count) {
    const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL | MSG_MORE);
    if (sent >= 0) return sent;
    return try_later() ? 0 : -1;
}

int64_t socket_unanswered_ms(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
    return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 ? (int64_t)info.tcpi_last_ack_recv
                                                              : 0;
}

/* True if `name` is one of the names in `list`, or there is no list. */
static bool is_listed(const char *list, const char *name) {
    const size_t len = strlen(name);
    for (const char *at = list; at && *at;) {
        const size_t part = strcspn(at, ",");
        if (part == len && strncmp(at, name, len) == 0) return true;
        at += part + (at[part] == ',');
    }
    return !list || !*list;
}

static bool address_of(const struct ifaddrs *i, char text[INET_ADDRSTRLEN]) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) return false;
    const struct sockaddr_in *const address = (const struct sockaddr_in *)i->ifa_addr;
    return inet_ntop(AF_INET, &address->sin_addr, text, INET_ADDRSTRLEN) != NULL;
}

enum status socket_addresses(struct str *out, const char *interfaces, struct err *e) {
    struct ifaddrs *all = NULL;
    struct str there = {0};
    char text[INET_ADDRSTRLEN];
    const size_t before = out->len;
    if (getifaddrs(&all) != 0) all = NULL;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!address_of(i, text)) continue;
        str_appendf(&there, "%s%s", there.len ? ", " : "", i->ifa_name);
        const bool wanted = interfaces && *interfaces ? is_listed(interfaces, i->ifa_name)
                                                      : !(i->ifa_flags & IFF_LOOPBACK);
        if (wanted) str_appendf(out, "%s%s", out->len > before ? " " : "", text);
    }
    if (all) freeifaddrs(all);
    enum status status = STATUS_OK;
    if (interfaces && *interfaces && out->len == before)
        status = err_set(e, STATUS_NOT_FOUND,
                         "no interface %.60s with an address is here; there are: %.200s",
                         interfaces, there.len ? str_text(&there) : "none");
    str_release(&there);
    return status;
}

void socket_machine(struct str *out) {
    struct stat space;
    struct err ignored = {0};
    struct str boot = {0};
    if (file_read("/proc/sys/kernel/random/boot_id", BOOT_ID_MAX, &boot, &ignored) == STATUS_OK &&
        stat("/proc/self/ns/net", &space) == 0)
        str_appendf(out, "%.*s/%llu", (int)strcspn(str_text(&boot), "\n"), str_text(&boot),
                    (unsigned long long)space.st_ino);
    str_release(&boot);
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

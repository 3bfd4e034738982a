/* socket.h - TCP connections between processes of one run, never blocking but in connecting.
 *
 * A descriptor is -1 when there is none. Here because errno is base's business; who waits does so
 * with poll(2) on the descriptors. */
#ifndef PLIMSOLL_BASE_SOCKET_H
#define PLIMSOLL_BASE_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Listens on a free port, of the loopback address only or of all. Caller closes *fd. */
enum status socket_listen(int *fd, bool loopback, int *port, struct err *e);
/* The next connection that waits, or -1. Caller closes. */
int socket_accept(int listener);
/* Connects to a numeric address within the time. Caller closes *fd. */
enum status socket_connect(int *fd, const char *address, int port, int timeout_ms, struct err *e);
void socket_close(int *fd);

/* Bytes sent or received at once; 0: none now; -1: the other side is gone. */
int64_t socket_send(int fd, const void *bytes, size_t count);
int64_t socket_receive(int fd, void *bytes, size_t capacity);

/* As socket_send, when more follows at once: small parts then leave together. */
int64_t socket_send_more(int fd, const void *bytes, size_t count);
/* For how long what was sent has waited for a sign of the other side's kernel; 0: nothing waits. A
 * receiver that does not read is no silence: its kernel answers. */
int64_t socket_unanswered_ms(int fd);

/* Numeric addresses by which other machines may reach this one, separated by spaces: of all
 * interfaces that are up but loopback, or of those that `interfaces` names, separated by commas.
 * STATUS_NOT_FOUND if a named one has no address, saying which there are. */
enum status socket_addresses(struct str *out, const char *interfaces, struct err *e);
/* What tells two processes that they can reach each other by the loopback address: this boot of
 * this machine, and the network namespace. Empty where the system does not say. */
void socket_machine(struct str *out);
/* This machine's name, for people. */
void socket_host_name(char *name, size_t size);
/* Bytes that nobody can guess. */
enum status socket_random(void *bytes, size_t count, struct err *e);

#endif

/* Loaded before libc (LD_PRELOAD): a socket that asks for every address gets the loopback one instead.
   RocketMQ's HA port and the proxy's ports take no address from their configuration. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

/* ::ffff:127.0.0.1, so that a dual-stack socket still answers IPv4. */
static const unsigned char MAPPED_LOOPBACK[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

int bind(int descriptor, const struct sockaddr *asked, socklen_t length) {
    static bind_function next = NULL;
    struct sockaddr_storage given;
    if (next == NULL) next = (bind_function)dlsym(RTLD_NEXT, "bind");
    if (asked == NULL || length > sizeof given) return next(descriptor, asked, length);
    memcpy(&given, asked, length);
    if (asked->sa_family == AF_INET) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&given;
        if (v4->sin_addr.s_addr == htonl(INADDR_ANY)) v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else if (asked->sa_family == AF_INET6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&given;
        if (IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)) memcpy(&v6->sin6_addr, MAPPED_LOOPBACK, sizeof MAPPED_LOOPBACK);
    }
    return next(descriptor, (struct sockaddr *)&given, length);
}

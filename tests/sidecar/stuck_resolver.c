/* A name service that never answers, to be put before the real one with LD_PRELOAD. */
#include <stdio.h>
#include <unistd.h>

struct addrinfo;

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)service, (void)hints, (void)found;
    fprintf(stderr, "looking up %s\n", name);
    for (;;)
        pause();
}

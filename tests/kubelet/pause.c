/* What keeps a pod's sandbox: it waits to be told to end. Process 1 gets no default action for a signal. */
#include <signal.h>
#include <unistd.h>

static void end(int number)
{
    (void)number;
    _exit(0);
}

int main(void)
{
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;)
        pause();
}

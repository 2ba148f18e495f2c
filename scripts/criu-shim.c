/* What CRIU lacks, preloaded into it by scripts/criu.
 *
 * Where root lacks CAP_SYS_RESOURCE, as in most containers, prlimit(2) tells the limits of other users' processes to nobody,
 * and CRIU cannot dump them. /proc/PID/limits tells the same.
 *
 * At the end of a restore CRIU lets go of one thread after another. Those that run already may end the others, by exit_group(2)
 * or by SIGKILL; CRIU then finds nobody to let go of, and gives the whole restore up. Who has ended needs no letting go. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXITING 0x4 /* the kernel's PF_EXITING */

static const char *const names[] = {
	"Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size", "Max resident set",
	"Max processes", "Max open files", "Max locked memory", "Max address space", "Max file locks",
	"Max pending signals", "Max msgqueue size", "Max nice priority", "Max realtime priority", "Max realtime timeout",
};

static rlim_t number(const char *text)
{
	return strcmp(text, "unlimited") ? (rlim_t)strtoull(text, NULL, 10) : RLIM_INFINITY;
}

static int from_proc(pid_t pid, unsigned int which, struct rlimit *old)
{
	char path[64], line[256], soft[32], hard[32];
	size_t length = strlen(names[which]);
	int found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	file = fopen(path, "r");
	if (!file)
		return -1;
	while (!found && fgets(line, sizeof(line), file))
		found = !strncmp(line, names[which], length) && line[length] == ' ' &&
			sscanf(line + length, "%31s %31s", soft, hard) == 2;
	fclose(file);
	if (!found)
		return -1;
	old->rlim_cur = number(soft);
	old->rlim_max = number(hard);
	return 0;
}

/* CRIU makes this call by its number. */
long syscall(long call, ...)
{
	static long (*next)(long, ...);
	long given[6], result;
	va_list list;
	int i;

	va_start(list, call);
	for (i = 0; i < 6; i++)
		given[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	result = next(call, given[0], given[1], given[2], given[3], given[4], given[5]);
	if (call == SYS_prlimit64 && result < 0 && errno == EPERM && !given[2] && given[3] &&
	    (unsigned long)given[1] < sizeof(names) / sizeof(*names))
		return from_proc((pid_t)given[0], (unsigned int)given[1], (struct rlimit *)given[3]);
	return result;
}

/* Has it ended, or was it killed and is about to? */
static int is_over(pid_t pid)
{
	unsigned long flags, pending;
	char path[64], line[1024], state, *rest;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "r");
	if (!file)
		return 1;
	rest = fgets(line, sizeof(line), file);
	fclose(file);
	rest = rest ? strrchr(line, ')') : NULL; /* its name may hold one, too */
	if (!rest)
		return 1;
	if (sscanf(rest + 1,
		   " %c %*s %*s %*s %*s %*s %lu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
		   "%*s %*s %*s %lu",
		   &state, &flags, &pending) != 3)
		return 0;
	return state == 'Z' || state == 'X' || flags & EXITING || pending & 1UL << (SIGKILL - 1);
}

long ptrace(enum __ptrace_request request, ...)
{
	static long (*next)(enum __ptrace_request, ...);
	void *address, *data;
	long result;
	va_list list;
	pid_t pid;
	int i;

	va_start(list, request);
	pid = va_arg(list, pid_t);
	address = va_arg(list, void *);
	data = va_arg(list, void *);
	va_end(list);
	if (!next)
		next = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
	result = next(request, pid, address, data);
	if (request != PTRACE_DETACH || result == 0 || errno != ESRCH)
		return result;
	for (i = 0; i < 50; i++) { /* between the two it is neither, for a moment */
		if (is_over(pid))
			return 0;
		usleep(1000);
	}
	errno = ESRCH;
	return result;
}

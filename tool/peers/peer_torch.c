// SPDX-License-Identifier: Apache-2.0
// The protocol: JSON lines over one socket, one request and one reply for each case. The process starts
// once, because importing torch takes seconds.
#define _GNU_SOURCE
#include "peers/peer_torch.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure/measure_session.h"
#include "peers/peer_blas.h"
#include "system/device_option.h"
#include "system/environment.h"
#include "system/heap.h"
#include "system/helper.h"

extern const unsigned char embedded_peer_library[], embedded_peer_cpu[], embedded_peer_device[],
    embedded_peer_torch[], embedded_peer_torch_matmul[], embedded_peer_torch_moe[],
    embedded_peer_torch_rows[], embedded_peer_triton[];

// The scripts are passed as arguments, each after its name, and import each other. Triton reads the sources of its
// kernels, so the prelude puts them into linecache like files.
//
// With -I Python imports nothing from the current directory, which may belong to somebody else. The prelude adds the
// absolute folders of $PYTHONPATH and the user's own packages again.
static const char prelude[] =
    "import importlib.abc, importlib.util, linecache, os, site, sys\n"
    "named = os.environ.get('PYTHONPATH', '').split(os.pathsep)\n"
    "sys.path[:0] = [folder for folder in named if os.path.isabs(folder)]\n"
    "if sys.prefix == sys.base_prefix and not os.environ.get('PYTHONNOUSERSITE'):\n"
    "    if os.path.isabs(site.getusersitepackages()):\n"
    "        site.addsitedir(site.getusersitepackages())\n"
    "sources = dict(zip(sys.argv[3::2], sys.argv[4::2]))\n"
    "class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name in sources:\n"
    "            return importlib.util.spec_from_loader(name, self)\n"
    "    def exec_module(self, module):\n"
    "        name, source = module.__name__, sources[module.__name__]\n"
    "        file = module.__file__ = '/tessera/bench/' + name + '.py'\n"
    "        linecache.cache[file] = len(source), None, source.splitlines(True), file\n"
    "        exec(compile(source, file, 'exec'), module.__dict__)\n"
    "sys.meta_path.insert(0, Sources())\n"
    "import peer_torch\n"
    "peer_torch.main()\n";

struct peer_torch {
    const char *name;
    pid_t process;
    int socket;
    FILE *replies;
    char *line;
    size_t line_bytes;
};

// ---- Where things are -------------------------------------------------------------------------

// <folder of this program>/<name>, if there is such a file.
static bool beside_us(const char *name, char *path) {
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (length <= 0) return false;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = PATH_MAX - (size_t)(slash + 1 - path);
    return snprintf(slash + 1, room, "%s", name) < (int)room && access(path, R_OK) == 0;
}

// The shared library: in the build folder, in an installed tree, else where the loader finds it.
static void find_library(char *path) {
    const char *given = environment_value("TESSERA_LIBRARY");
    if (given != NULL && *given != '\0')
        snprintf(path, PATH_MAX, "%s", given);
    else if (!beside_us("libtessera.so", path) &&
             !beside_us(TSR_TOOL_TO_LIBRARIES "/libtessera.so", path))
        strcpy(path, "libtessera.so");
}

// ---- The process ------------------------------------------------------------------------------

static bool start(struct peer_torch *torch, const char *name, const char *library) {
    static const void *const scripts[][2] = {
        {"peer_library", embedded_peer_library},
        {"peer_cpu", embedded_peer_cpu},
        {"peer_device", embedded_peer_device},
        {"peer_torch", embedded_peer_torch},
        {"peer_triton", embedded_peer_triton},
        {"peer_torch_matmul", embedded_peer_torch_matmul},
        {"peer_torch_moe", embedded_peer_torch_moe},
        {"peer_torch_rows", embedded_peer_torch_rows},
    };
    enum { NUM_SCRIPTS = sizeof scripts / sizeof *scripts };
    int ends[2];
    char python[PATH_MAX];
    if (!helper_find(name, python)) return false;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    const void *words[] = {python, "-I", "-c", prelude, library, torch->name};
    enum { NUM_WORDS = sizeof words / sizeof *words };
    char *arguments[NUM_WORDS + 2 * NUM_SCRIPTS + 1] = {NULL};
    memcpy(arguments, words, sizeof words);
    memcpy(arguments + NUM_WORDS, scripts, sizeof scripts);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    // Errors come as replies, and warnings of torch and other packages do not belong in the tool's output.
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    // In a group of its own the process does not get the terminal's Ctrl-C. It ends when its input ends, after the current
    // case.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    bool is_started =
        posix_spawn(&torch->process, python, &actions, &attributes, arguments, environ) == 0;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (is_started && (torch->replies = fdopen(ends[0], "r")) != NULL) {
        torch->socket = ends[0];
        return true;
    }
    close(ends[0]);
    return false;
}

// One reply, or NULL with the reason in error.
static json_t *next_reply(struct peer_torch *torch, char *error, size_t error_bytes) {
    json_t *reply = NULL;
    if (getline(&torch->line, &torch->line_bytes, torch->replies) > 0)
        reply = json_loads(torch->line, 0, NULL);
    if (!json_is_object(reply)) {
        json_decref(reply);
        snprintf(error, error_bytes, "its process ended without an answer");
        return NULL;
    }
    return reply;
}

static const char *text_of(const json_t *reply, const char *key) {
    return json_string_value(json_object_get(reply, key));
}

// {"ready": version of torch, "library": version of ours}, or {"error": "..."}.
static struct peer_torch *try_python(const char *name, const char *python, const char *library,
                                     char *error, size_t error_bytes) {
    struct peer_torch *torch = heap_get(1, sizeof *torch);
    torch->name = name;
    if (!start(torch, python, library)) {
        snprintf(error, error_bytes, "cannot start %s", python);
        free(torch);
        return NULL;
    }
    char why[256];
    json_t *reply = next_reply(torch, why, sizeof why);
    const char *version = text_of(reply, "library"), *problem = text_of(reply, "error");
    bool is_ready = version != NULL && strcmp(version, tsr_version()) == 0;
    if (!is_ready && version != NULL)
        snprintf(error, error_bytes, "%s is version %s, this is %s", library, version,
                 tsr_version());
    else if (!is_ready)
        snprintf(error, error_bytes, "%s: %s", python, problem != NULL ? problem : why);
    json_decref(reply);
    if (is_ready) return torch;
    peer_torch_close(torch);
    return NULL;
}

struct peer_torch *peer_torch_open(const char *name, char *error, size_t error_bytes) {
    char library[PATH_MAX], venv[PATH_MAX];
    peer_set_environment();
    // torch allocates its outputs at every call, ours writes to existing tensors. So torch's heap stays mapped, and page
    // faults on fresh pages do not count in the comparison.
    setenv(
        "GLIBC_TUNABLES",
        "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1",
        0);
    setenv("PYTHONSAFEPATH", "1", 1); // for the processes that torch starts
    find_library(library);
    const char *given = environment_value("TESSERA_PYTHON");
    if (given != NULL && *given != '\0')
        return try_python(name, given, library, error, error_bytes);
    struct peer_torch *torch = NULL;
    if (beside_us("../venv/bin/python", venv)) // build/venv of build/release/tessera
        torch = try_python(name, venv, library, error, error_bytes);
    if (torch == NULL) torch = try_python(name, "python3", library, error, error_bytes);
    size_t used = strlen(error);
    if (torch == NULL && used < error_bytes)
        snprintf(error + used, error_bytes - used, " ($TESSERA_PYTHON names another Python)");
    return torch;
}

void peer_torch_close(struct peer_torch *torch) {
    if (torch == NULL) return;
    shutdown(torch->socket, SHUT_RDWR); // the process ends when its input ends
    fclose(torch->replies);
    waitpid(torch->process, NULL, 0);
    free(torch->line);
    free(torch);
}

// ---- One case ---------------------------------------------------------------------------------

static json_t *tensors_json(const struct op_case *c) {
    json_t *tensors = json_object();
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        int64_t shape[TSR_MAX_DIMS];
        int ndim = c->spec->shape(c, s, shape);
        json_t *dims = json_array();
        for (int d = 0; d < ndim; d++) json_array_append_new(dims, json_integer(shape[d]));
        json_object_set_new(
            tensors, c->spec->slots[s].name,
            json_pack("{s:o, s:s}", "shape", dims, "dtype", tsr_dtype_name(case_slot_dtype(c, s))));
    }
    return tensors;
}

// The request: the case as a result has it, and how to measure.
static json_t *request_json(struct measure_session *session, const struct op_case *c,
                            const char *variant, const struct result *empty) {
    const struct measure_options *options = measure_options_of(session);
    const struct machine *machine = measure_machine(session);
    json_t *request = result_json(empty);
    json_object_set_new(request, "tensors", tensors_json(c));
    json_object_set_new(request, "flags", json_integer(c->flags));
    json_object_set_new(request, "variant", variant != NULL ? json_string(variant) : json_null());
    json_object_set_new(request, "isa", json_integer(machine->isa));
    json_object_set_new(request, "threads", json_integer(machine->num_threads));
    json_object_set_new(request, "seed", json_integer((json_int_t)options->seed));
    json_object_set_new(request, "budget_s", json_real(options->budget_s));
    json_object_set_new(request, "rep", json_integer(options->num_rep));
    return request;
}

static bool send_line(int socket, json_t *request) {
    char *text = json_dumps(request, JSON_COMPACT);
    json_decref(request);
    if (text == NULL) return false;
    size_t length = strlen(text), sent = 0;
    text[length++] = '\n'; // replaces the terminating zero
    while (sent < length) {
        ssize_t count = send(socket, text + sent, length - sent, MSG_NOSIGNAL);
        if (count <= 0) break;
        sent += (size_t)count;
    }
    free(text);
    return sent == length;
}

static double number_of(const json_t *reply, const char *key) {
    const json_t *value = json_object_get(reply, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void read_result(const json_t *reply, struct measure_session *session,
                        const struct op_case *c, struct result *result) {
    const char *path = text_of(reply, "path");
    snprintf(result->variant, sizeof result->variant, "%s", path != NULL ? path : "");
    result->median_ms = number_of(reply, "median_ms");
    result->p20_ms = number_of(reply, "p20_ms");
    result->p80_ms = number_of(reply, "p80_ms");
    result->ours_ms = number_of(reply, "ours_ms");
    result->graph_ms = number_of(reply, "graph_ms");
    result->ours_call_ms = number_of(reply, "ours_call_ms");
    double device_ms = result_device_ms(result);
    result->speedup_over_peer = device_ms / result->ours_ms;
    result->max_abs_err = number_of(reply, "max_abs_err");
    result->tflops = 1e-9 * c->spec->flops(c) / device_ms;
    result->gb_s = 1e-6 * case_bytes(c) / device_ms;
    // On the CPU torch's 16-bit products may use units that the probe does not use.
    if (c->dtype == TSR_F32 || is_on_device(session)) {
        double rate = measure_fma_ceiling(session);
        if (is_on_device(session))
            rate = measure_unit_ceiling(session, measure_unit_of(session, c, result->variant));
        result->ceiling_ms = 1e3 * measure_floor_s(session, c, rate, false);
        result->share_of_ceiling = result->ceiling_ms / device_ms;
    }
    result->num_samples = (int)json_integer_value(json_object_get(reply, "samples"));
    result->num_set_aside = (int)json_integer_value(json_object_get(reply, "samples_set_aside"));
    result->is_throttled = json_is_true(json_object_get(reply, "throttled"));
}

enum measure_outcome peer_torch_measure(struct peer_torch *torch, struct measure_session *session,
                                        const struct op_case *c, const char *variant,
                                        struct result *result, char *error, size_t error_bytes) {
    const struct machine *machine = measure_machine(session);
    const struct measure_options *options = measure_options_of(session);
    if (options->is_cold) {
        snprintf(error, error_bytes, "%s is not measured with cold caches", torch->name);
        return MEASURE_UNSUPPORTED;
    }
    *result = result_empty(c);
    result->peer = torch->name;
    result->num_threads = machine->num_threads;
    if (is_on_device(session)) {
        snprintf(result->device, sizeof result->device, "%s", tsr_device_name(options->device));
        snprintf(result->isa, sizeof result->isa, "%s", device_arch(session->ctx));
    }
    result->is_cold = inputs_bytes(c) > (double)machine->l3_bytes;
    json_t *reply = NULL;
    char why[256] = "its process has ended";
    if (send_line(torch->socket, request_json(session, c, variant, result)))
        reply = next_reply(torch, why, sizeof why);
    enum measure_outcome outcome = MEASURE_FAILED;
    const char *sentence = NULL;
    if (text_of(reply, "path") != NULL) {
        read_result(reply, session, c, result);
        outcome = MEASURE_OK;
    } else if ((sentence = text_of(reply, "unsupported")) != NULL) {
        outcome = MEASURE_UNSUPPORTED;
    } else if ((sentence = text_of(reply, "disagrees")) != NULL) {
        outcome = MEASURE_WRONG;
    } else {
        sentence = text_of(reply, "error");
    }
    snprintf(error, error_bytes, "%s", sentence != NULL ? sentence : why);
    json_decref(reply);
    return outcome;
}

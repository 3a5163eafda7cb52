/* SPDX-License-Identifier: Apache-2.0 */
#include "scope.h"

#include "answer.h"
#include "gate.h"
#include "keys.h"
#include "loader.h"
#include "slot.h"
#include "text.h"

#include <errno.h>
#include <stddef.h>

#define PASS_TRIES 8

uint32_t scope_seen;

/*
 * Passes made over each namespace: its first `count` objects were processed when the loader had
 * loaded `adds` and unloaded `subs`. A list grows only at its end, unless something was unloaded.
 * If the driver was loaded or reloaded, all are processed again: unresolved slots may lead to it
 * now.
 *
 * Accessed only in callbacks of dl_iterate_phdr(), under the loader's lock, which keeps the lists
 * stable. A lock of ours would be taken before it here, and after it when a constructor calls
 * dlsym. The callbacks may call no other function of the loader.
 */
static struct treated {
	unsigned long long adds, subs;
	uint32_t fills; /* of the libraries' entries until then */
	size_t count;
} treated[LOADER_NAMESPACES];

/* --- objects of any namespace --------------------------------------------------------------- */

static const struct link_map *first_of(const struct link_map *map)
{
	while (map->l_prev)
		map = map->l_prev;
	return map;
}

static bool is_copy(const struct elf_object *object, const struct library *library)
{
	return text_equal(object->name, library->soname);
}

/* --- one pass over a namespace -------------------------------------------------------------- */

struct pass {
	unsigned int namespace;
	const struct link_map *map; /* any object of it */
	unsigned long long adds, subs;
	bool last; /* made even if another object is being loaded */
	scope_stand_in *stand_in;
	/* The process's own, found once per pass. */
	struct elf_object cuda, nvml;
	bool has_cuda, has_nvml;
	struct mapped hit;         /* the last found; the next slot mostly leads to it too */
	bool uses_cuda, uses_nvml; /* a slot leads to it now, or it became the process's own */
};

/* Finds the object in which the loader would find the function or, without a name, the one that
 * contains the address. */
static bool find(struct pass *pass, const char *name, const void *address)
{
	struct elf_object *hit = &pass->hit.elf;

	if (name ? hit->name && elf_find_symbol(hit, name) &&
	               (is_copy(hit, &library_cuda) || is_copy(hit, &library_nvml))
	         : elf_contains(hit, address))
		return true;
	for (const struct link_map *map = first_of(pass->map); map; map = map->l_next) {
		if (slot_read_object(map, &pass->hit) &&
		    (name ? elf_find_symbol(hit, name) != NULL : elf_contains(hit, address)))
			return true;
	}
	pass->hit = (struct mapped){0};
	return false;
}

/* Returns the function to call by that name; NULL: unchanged. *library is NULL for the loader's. */
static void *wanted(const struct pass *pass, const char *name, struct library **library)
{
	*library = library_of(name);
	if (!*library)
		return pass->stand_in(name, pass->namespace);
	if (*library == &library_cuda)
		return pass->has_cuda ? answer_name(*library, &pass->cuda, name) : NULL;
	return pass->has_nvml ? answer_name(*library, &pass->nvml, name) : NULL;
}

/* Reports whether the slot leads to the library, or the C library, and not to a tool before it. An
 * unresolved one leads into its own object. */
static bool leads_there(struct pass *pass, const struct elf_object *object,
                        const ElfW(Sym) * symbol, const void *value, const struct library *library)
{
	bool unresolved = symbol->st_shndx == SHN_UNDEF && elf_contains(object, value);

	if (!value || !find(pass, unresolved ? object->strings + symbol->st_name : NULL, value))
		return false;
	/* In the base an unresolved one leads to us, or past us with RTLD_DEEPBIND. */
	if (elf_contains(&pass->hit.elf, &scope_seen))
		return true;
	return library ? is_copy(&pass->hit.elf, library) : elf_is_libc(&pass->hit.elf);
}

/* Returns the slot's new value; NULL: unchanged. */
static void *exchange(void *context, const struct elf_object *object, const ElfW(Sym) * symbol,
                      const void *value)
{
	struct pass *pass = context;
	struct library *library;
	void *instead = wanted(pass, object->strings + symbol->st_name, &library);

	if (!instead || instead == value || !leads_there(pass, object, symbol, value, library))
		return NULL;
	pass->uses_cuda |= library == &library_cuda;
	pass->uses_nvml |= library == &library_nvml;
	return instead;
}

static void keep_dlsym(unsigned int namespace, const struct elf_object *libc)
{
	void *found = elf_find_symbol(libc, "dlsym"), *versioned = elf_find_symbol(libc, "dlvsym");

	if (!found || namespace == 0)
		return;
	__atomic_store_n(&loader_dlsym[namespace], found, __ATOMIC_RELEASE);
	__atomic_store_n(&loader_dlvsym[namespace], versioned, __ATOMIC_RELEASE);
}

/* Reports whether it is a library of the driver's: its calls while memory moves must not request
 * the slice's return. */
static bool is_of_driver(const struct pass *pass, const struct elf_object *object)
{
	static const char prefix[] = "libnvidia-";

	return pass->namespace == 0 && gate_is_elastic() && text_begins(object->name, prefix);
}

static void treat_object(struct pass *pass, const struct link_map *map)
{
	struct mapped object;

	if (!slot_read_object(map, &object))
		return;
	keys_see(pass->namespace, &object.elf);
	if (elf_is_libc(&object.elf))
		keep_dlsym(pass->namespace, &object.elf);
	else if (!loader_is_loader(&object.elf) && !is_copy(&object.elf, &library_cuda) &&
	         !is_copy(&object.elf, &library_nvml) && !is_of_driver(pass, &object.elf) &&
	         !elf_contains(&object.elf, &scope_seen))
		slot_set_all(&object, exchange, pass);
}

/* --- callbacks of dl_iterate_phdr(), each called once --------------------------------------- */

/* Returns 1 if the namespace is up to date, else 2. */
static int is_treated(struct dl_phdr_info *info, size_t size, void *data)
{
	const struct treated *done;
	struct pass *pass = data;

	(void)size;
	done = &treated[pass->namespace];
	pass->adds = info->dlpi_adds;
	pass->subs = info->dlpi_subs;
	return done->adds == pass->adds && done->subs == pass->subs ? 1 : 2;
}

/* Finds the process's library, or adopts the namespace's. */
static bool find_or_adopt(struct pass *pass, struct library *library, struct elf_object *found,
                          bool *uses)
{
	struct mapped object;

	if (library_find(library, found))
		return true;
	for (const struct link_map *map = first_of(pass->map); map; map = map->l_next) {
		if (!slot_read_object(map, &object) || !is_copy(&object.elf, library))
			continue;
		library_adopt(library, &object.elf, pass->namespace);
		scope_see(SCOPE_BASE);
		*uses = true;
		return library_find(library, found);
	}
	return false;
}

/* Returns 1 if the pass was made; 2 if an object was loaded since is_treated(). */
static int make_pass(struct dl_phdr_info *info, size_t size, void *data)
{
	struct pass *pass = data;
	struct treated *done = &treated[pass->namespace];
	size_t from = 0, at = 0;
	uint32_t fills;

	(void)size;
	if ((pass->adds != info->dlpi_adds || pass->subs != info->dlpi_subs) && !pass->last)
		return 2;
	pass->has_cuda = find_or_adopt(pass, &library_cuda, &pass->cuda, &pass->uses_cuda);
	pass->has_nvml = find_or_adopt(pass, &library_nvml, &pass->nvml, &pass->uses_nvml);
	fills = library_cuda.fills + library_nvml.fills;
	if (done->subs == info->dlpi_subs && done->fills == fills)
		from = done->count;
	for (const struct link_map *map = first_of(pass->map); map; map = map->l_next, at++) {
		if (at >= from)
			treat_object(pass, map);
	}
	*done = (struct treated){info->dlpi_adds, info->dlpi_subs, fills, at};
	return 1;
}

/* -------------------------------------------------------------------------------------------- */

void *scope_library(struct library *library)
{
	const int mode = RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE;
	__typeof__(&dlopen) open = LOADER(dlopen);
	__typeof__(&dlmopen) open_in = LOADER(dlmopen);
	void *handle = __atomic_load_n(&library->handle, __ATOMIC_ACQUIRE);
	struct elf_object object;
	int saved = errno;

	if (handle || !library_find(library, &object))
		return handle;
	if (library->namespace && open_in)
		handle = open_in(library->namespace, object.path, mode);
	else if (open)
		handle = open(object.path, mode);
	__atomic_store_n(&library->handle, handle, __ATOMIC_RELEASE);
	errno = saved;
	return handle;
}

void scope_use_library(struct library *library, unsigned int namespace)
{
	(void)scope_library(library);
	if (namespace != library->namespace)
		keys_part(namespace, library->namespace);
}

/* Concurrent loads may leave objects on the list that are not relocated yet. dladdr() waits for a
 * load's lock: if nothing was added since before it, all are. */
static void treat(struct pass *pass)
{
	__typeof__(&dladdr) wait = LOADER(dladdr);

	for (int tries = 1; elf_iterate(is_treated, pass) == 2; tries++) {
		Dl_info info;

		pass->last = tries == PASS_TRIES;
		if (wait)
			(void)wait(pass, &info); /* an address in no object */
		if (elf_iterate(make_pass, pass) == 1)
			break;
	}
	if (pass->uses_cuda)
		scope_use_library(&library_cuda, pass->namespace);
	if (pass->uses_nvml)
		scope_use_library(&library_nvml, pass->namespace);
}

unsigned int scope_hold(void *handle, scope_stand_in *stand_in)
{
	__typeof__(&dlinfo) about = LOADER(dlinfo);
	struct pass pass = {.stand_in = stand_in};
	Lmid_t namespace = LM_ID_BASE;
	int saved = errno;
	void *map;

	if (!about || about(handle, RTLD_DI_LMID, &namespace) != 0 || namespace < 0 ||
	    namespace >= LOADER_NAMESPACES || about(handle, RTLD_DI_LINKMAP, &map) != 0)
		return 0;
	if (namespace == LM_ID_BASE &&
	    !(__atomic_load_n(&scope_seen, __ATOMIC_RELAXED) & SCOPE_BASE))
		return 0;
	pass.namespace = (unsigned int)namespace;
	pass.map = map;
	treat(&pass);
	errno = saved;
	return pass.namespace;
}

/* Returns the link map of an address in another namespace; NULL if there are none. */
static struct link_map *map_of(const void *address)
{
	__typeof__(&dladdr1) about = LOADER(dladdr1);
	void *map = NULL;
	Dl_info info;

	if (!about || !about(address, &info, &map, RTLD_DL_LINKMAP))
		return NULL;
	return map;
}

void scope_hold_for_gate(scope_stand_in *stand_in)
{
	struct pass pass = {.stand_in = stand_in};
	int saved = errno;

	if (!gate_is_elastic())
		return;
	scope_see(SCOPE_BASE);
	pass.map = map_of(&scope_seen);
	if (pass.map)
		treat(&pass);
	errno = saved;
}

bool scope_find(const void *address, struct elf_object *object, unsigned int *namespace)
{
	__typeof__(&dlinfo) about = LOADER(dlinfo);
	Lmid_t id = LM_ID_BASE;
	struct mapped mapped;
	struct link_map *map;

	*namespace = 0;
	if (elf_find_containing(address, object))
		return true;
	map = map_of(address);
	if (!map || !about || about(map, RTLD_DI_LMID, &id) != 0 || id < 0 ||
	    id >= LOADER_NAMESPACES)
		return false;
	*namespace = (unsigned int)id;
	if (!slot_read_object(map, &mapped))
		return false;
	*object = mapped.elf;
	return true;
}

struct definer {
	const struct link_map *caller;
	bool next;
	const char *symbol;
	struct elf_object *object;
};

static bool defines(const struct link_map *map, struct definer *search)
{
	struct mapped object;

	if (!slot_read_object(map, &object) || !elf_find_symbol(&object.elf, search->symbol))
		return false;
	*search->object = object.elf;
	return true;
}

/* Searches in the order of elf_find_next(). */
static int look_for_definer(struct dl_phdr_info *info, size_t size, void *data)
{
	struct definer *search = data;
	const struct link_map *map;

	(void)info;
	(void)size;
	for (map = search->caller->l_next; search->next && map; map = map->l_next) {
		if (defines(map, search))
			return 1;
	}
	for (map = first_of(search->caller); map; map = map->l_next) {
		if ((map != search->caller || !search->next) && defines(map, search))
			return 1;
	}
	return 2;
}

bool scope_find_definer(const void *caller, bool next, const char *symbol,
                        struct elf_object *object)
{
	struct definer search = {map_of(caller), next, symbol, object};

	return search.caller && elf_iterate(look_for_definer, &search) == 1;
}

"""Reads a spec, the JSON description of a model (model.schema.json), into a graph.Model with the same tensors
that gpunn_spec_load builds. All errors are SpecErrors that name the file, the line and the column."""
import difflib
import inspect
import json
import re
from functools import lru_cache, partial

from . import json_text, schema as schema_file, table
from .exchange.header import FileError, is_safetensors, spec_in
from .floats import f32
from .graph import MAX_NAME, Entry, Graph, GraphError, Model, check_name
from .sizes import SizeError
from .json_text import Array, Object, SpecError

_OUTSIDE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_TYPES = {"object": Object, "array": Array, "string": str, "boolean": bool, "integer": int,
          "number": (int, float)}
_SETTINGS = ("trainable", "decay", "lr_scale", "frozen", "storage")


@lru_cache(maxsize=None)
def schema():
    """model.schema.json with all $ref resolved: their targets are merged into them."""
    with open(schema_file.PATH, encoding="ascii") as file:
        root = json.load(file)
    return followed(root, root)


def followed(part, root):
    if isinstance(part, list):
        return [followed(item, root) for item in part]
    if not isinstance(part, dict):
        return part
    result = {}
    if "$ref" in part:
        target = root
        for step in part["$ref"].split("/")[1:]:
            target = target[step]
        result.update(followed(target, root))
    result.update((key, followed(item, root)) for key, item in part.items())
    return result


@lru_cache(maxsize=None)
def ops():
    """The schema of an entry by op."""
    result = {}
    for part in schema()["$defs"]["ops"].values():
        op = part["properties"]["op"]
        result.update((name, part) for name in op.get("enum", [op.get("const")]))
    return result


@lru_cache(maxsize=None)
def optimizers():
    """The schema of "optimizer" by type."""
    return schema()["$defs"]["optimizers"]


def nearest(word, words):
    found = difflib.get_close_matches(word, words, 1) if len(word) <= 64 else ()
    return "; did you mean '%s'?" % found[0] if found else ""


def shown(value):
    """A value, as messages show it."""
    if isinstance(value, (Object, Array)):
        return ("an object" if isinstance(value, Object) else "an empty list" if not value else
                "a list of %d" % len(value))
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."


def fits(value, part):
    """Whether a value fits a schema without properties."""
    if "anyOf" in part and not any(fits(value, one) for one in part["anyOf"]):
        return False
    if "const" in part and (value != part["const"] or type(value) is not type(part["const"])):
        return False
    if "enum" in part and not (isinstance(value, str) and value in part["enum"]):
        return False
    if "type" in part and (not isinstance(value, _TYPES[part["type"]]) or
                           (isinstance(value, bool) and part["type"] != "boolean")):
        return False
    if isinstance(value, str):
        return (part.get("minLength", 0) <= len(value) <= part.get("maxLength", len(value)) and
                ("pattern" not in part or re.search(part["pattern"], value) is not None))
    if isinstance(value, Array):
        return (part.get("minItems", 0) <= len(value) <= part.get("maxItems", len(value)) and
                ("items" not in part or all(fits(item, part["items"]) for item in value)))
    if isinstance(value, Object):
        return (part.get("minProperties", 0) <= len(value) <= part.get("maxProperties", len(value)) and
                all(fits(key, part.get("propertyNames", {})) and
                    fits(item, part.get("additionalProperties", {})) for key, item in value.items()))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (part.get("minimum", value) <= value <= part.get("maximum", value) and
                value < part.get("exclusiveMaximum", float("inf")))
    return True


class Loader:
    def __init__(self, source, fixed=None):
        self.source = source
        self.graph = Graph()
        self.graph.fixed = fixed or {}
        self.ids = {}      # Tensors by all texts that may refer to them
        self.later = {}    # offsets of later entries, by the same texts
        self.entries = []

    def fail(self, at, message):
        raise self.source.error(at, message)

    # ---- form ----
    def check(self, value, at, part, what):
        if "properties" in part:
            self.check_object(value, at, part, what)
        elif "properties" in (part.get("additionalProperties") or {}) and isinstance(value, Object):
            for key, item in value.items():
                if not fits(key, part["propertyNames"]):
                    self.fail_at_fault(key, value.key_at[key], part["propertyNames"], "a name in " + what)
                self.check(item, value.value_at[key], part["additionalProperties"], "%s of %s" % (key, what))
        elif not fits(value, part):
            self.fail_at_fault(value, at, part, what)

    def fail_at_fault(self, value, at, part, what):
        """Reports what does not fit: the one wrong item of a list or object, else the whole."""
        inner = next((one for one in part.get("anyOf", ())
                      if isinstance(value, _TYPES.get(one.get("type"), ()))), part)
        if isinstance(value, Array) and "title" in inner.get("items", {}):
            for i, item in enumerate(value):
                if not fits(item, inner["items"]):
                    self.fail_at_fault(item, value.value_at[i], inner["items"],
                                       "item %d of %s" % (i + 1, what))
        if isinstance(value, Object) and "additionalProperties" in inner:
            for key, item in value.items():
                if not fits(key, inner["propertyNames"]):
                    self.fail_at_fault(key, value.key_at[key], inner["propertyNames"], "a name in " + what)
                if not fits(item, inner["additionalProperties"]):
                    self.fail_at_fault(item, value.value_at[key], inner["additionalProperties"],
                                       "%s of %s" % (shown(key), what))
        self.fail(at, "%s is %s, but must be %s" % (what, shown(value), part["title"]))

    def check_object(self, value, at, part, what):
        if not isinstance(value, Object):
            self.fail(at, "%s is %s, but must be an object" % (what, shown(value)))
        for key in value:
            if key not in part["properties"]:
                self.fail(value.key_at[key],
                          "%s has no '%.60s'%s" % (what, key, nearest(key, list(part["properties"]))))
        for key in part["required"] if "required" in part else ():
            if key not in value:
                self.fail(at, "%s lacks '%s'" % (what, key))
        for key, item in value.items():
            self.check(item, value.value_at[key], part["properties"][key], "%s of %s" % (key, what))

    def variant(self, value, at, key, known, what):
        """Checks an object whose `key` selects one of the `known` schemas."""
        if not isinstance(value, Object):
            self.fail(at, "%s is %s, but must be an object" % (what, shown(value)))
        if key not in value:
            self.fail(at, "%s lacks '%s'" % (what, key))
        name, name_at = value[key], value.value_at[key]
        if not isinstance(name, str):
            self.fail(name_at, "'%s' of %s is %s, but must be a string" % (key, what, shown(name)))
        if name not in known:
            self.fail(name_at, "unknown %s '%.60s'%s" % (key, name, nearest(name, list(known))))
        self.check(value, at, known[name], name)
        return known[name]

    @staticmethod
    def filled(value, part):
        """The properties of an object, with defaults for those left out, in the schema's order."""
        result = {}
        for key, inner in part["properties"].items():
            if key in value:
                given = value[key]
                result[key] = Loader.filled(given, inner) if "properties" in inner else given
            elif "default" in inner:
                result[key] = inner["default"]
        return result

    # ---- references ----
    def find(self, name, at):
        if name in self.ids:
            return self.ids[name]
        if name in self.later:
            self.fail(
                at, "'%.60s' is built only in line %s; a tensor can only read earlier ones" % (
                    name, self.source.place(self.later[name]).split(":")[-2]))
        return self.fail(at, "there is no tensor '%.60s'%s" % (name, nearest(name, list(self.ids))))

    def find_all(self, names):
        return [self.find(name, names.value_at[i]) for i, name in enumerate(names)]

    def register(self, name, t, at):
        if self.ids.setdefault(name, t) is not t:
            self.fail(at, "'%.60s' already means another tensor; ids and names are unique in a model" % name)

    # ---- tensors ----
    def tensor(self, entry, at):
        part = self.variant(entry, at, "op", ops(), "a tensor")
        first = len(self.graph.tensors)
        try:
            operands, arguments, build = self.call(entry, part)
            t = build()
            made = self.graph.tensors[first:]
            self.entries.append(Entry(entry["op"], operands, arguments, t, tuple(made)))
            name_key = "as" if "as" in part["properties"] else "name"
            if "id" in entry:
                check_name(entry["id"], MAX_NAME, "id")
            if name_key in entry:
                if t not in made:
                    raise GraphError("the op returns an existing tensor, which cannot be named again",
                                     name_key)
                self.graph.set_name(t, entry[name_key], name_key)
            self.apply_settings(entry, made)
        except (GraphError, SizeError) as fault:
            key = fault.key if fault.key in entry else "op"
            self.fail(entry.value_at[key], "%s: %s" % (self.called(entry), fault))
        for key in ("id", "name"):
            self.later.pop(entry.get(key), None)
        key = "id" if "id" in entry else "name"
        if key in entry:
            self.register(entry[key], t, entry.value_at[key])
            t.label = t.label or entry.get("id") or t.name or entry[key]
        for other in made:
            if other.name is not None:
                self.register(other.name, other, at)
                other.label = other.label or other.name

    @staticmethod
    def called(entry):
        label = entry.get("name", entry.get("id"))
        return entry["op"] if label is None else "%s '%.60s'" % (entry["op"], label)

    def call(self, entry, part):
        """The operands and the arguments of an entry's builder, and the builder."""
        op, given = entry["op"], entry.get("inputs", Array(0))
        if isinstance(given, Object):
            operands = [{name: self.find(given[name], given.value_at[name]) for name in sorted(given)}]
        else:
            operands = self.find_all(given)
        arguments = self.filled(entry, part)
        if table.ops().get(op) and table.ops()[op].arity:
            arguments = {name: _OUTSIDE.get(arguments[name], arguments[name])
                         for name, _ in table.ops()[op].attrs}
            return operands, arguments, partial(self.graph.apply, op, operands, list(arguments.values()))
        builder, known = self.graph.builder(op), builder_arguments(op)
        arguments = {key: value for key, value in arguments.items() if key in known}
        for key, value in arguments.items():
            kind = part["properties"][key].get("$ref", "").rpartition("/")[2]
            if kind == "reference":
                arguments[key] = self.find(entry[key], entry.value_at[key])
            elif kind == "references":
                arguments[key] = self.find_all(entry[key])
            elif kind == "extended":
                arguments[key] = _OUTSIDE.get(value, value)
        if isinstance(arguments.get("bias"), str):
            arguments["bias"] = self.find(entry["bias"], entry.value_at["bias"])
        if op == "constant":
            arguments["values"] = [_OUTSIDE.get(value, value) for value in entry["values"]]
        elif op == "expr":
            at = entry.value_at["expression"]
            builder = partial(builder, place=lambda offset: self.source.place(self.source.inside(at, offset)))
        return operands, arguments, partial(builder, *operands, **arguments)

    @staticmethod
    def setting(value):
        return value if isinstance(value, (bool, str)) else f32(value)

    def check_storage(self, settings, parameter):
        row = parameter.shape[-1] if parameter.shape else 1
        storage = parameter.storage
        if row % {"f32": 1, "NF4": 64}.get(storage, 256 if storage.endswith("_K") else 32):
            self.fail(settings.value_at["storage"], "a row of %d numbers is no whole number of blocks of %s" %
                      (row, storage))

    def apply_settings(self, entry, made):
        """Applies the settings of parameters, from a parameter's own entry or from a layer's."""
        parameters = [p for p in made if p.kind == "parameter"]
        for key in _SETTINGS:
            if key in entry:
                for p in parameters:
                    setattr(p, key, self.setting(entry[key]))
        if "storage" in entry:
            self.check_storage(entry, parameters[0])
        for suffix, settings in entry.get("parameters", {}).items():
            named = [p for p in parameters if p.name == "%s.%s" % (entry["name"], suffix)]
            if not named:
                self.fail(entry["parameters"].key_at[suffix], "%s has no %s" % (self.called(entry), suffix))
            for key in _SETTINGS:
                if key in settings:
                    setattr(named[0], key, self.setting(settings[key]))
            if "storage" in settings:
                self.check_storage(settings, named[0])
            if "init" in settings:
                init = self.filled(settings["init"], schema()["$defs"]["init"])
                try:
                    named[0].init = self.graph.sound_init(init, named[0].shape)
                except GraphError as fault:
                    self.fail(settings.value_at["init"], "%s of %s: %s" % (suffix, self.called(entry), fault))

    # ---- the whole ----
    def model(self):
        root = json_text.read(self.source)
        at = getattr(root, "at", 0)
        if isinstance(root, Object) and "gpunn_spec" not in root:
            self.fail(at, "this is not a gpunn spec: it lacks \"gpunn_spec\": 1")
        self.check(root, at, dict(schema(), properties=dict(schema()["properties"], tensors={
            "type": "array", "title": "a list of tensors"}, optimizer={})), "the spec")
        values = self.filled(root, schema())
        named = self.sizes(root)
        self.graph.multiples = {name: bounds["multiple"] for name, bounds in named.items()}
        named = {name: bounds for name, bounds in named.items() if name not in self.graph.fixed}
        for i, entry in enumerate(root["tensors"]):
            if isinstance(entry, Object):
                for key in ("id", "name"):
                    if isinstance(entry.get(key), str):
                        self.later.setdefault(entry[key], root["tensors"].value_at[i])
        for i, entry in enumerate(root["tensors"]):
            self.tensor(entry, root["tensors"].value_at[i])
        return Model(values.get("name", ""), values["precision"], values["math"], values["layout"],
                     self.graph.tensors,
                     self.outputs(root), self.loss(root), self.optimizer(root), f32(values["clip_grad_norm"]),
                     f32(values["clip_grad_value"]), self.ema_decay(root, values), named, self.fuse(root),
                     self.source.place(root.value_at.get("fuse", at)), self.entries)

    def sizes(self, root):
        """The bounds of the named sizes. max 0: unlimited."""
        named = {}
        for name, given in root.get("sizes", {}).items():
            least, most, multiple = (given.get(key, usual)
                                     for key, usual in (("min", 1), ("max", 0), ("multiple", 1)))
            bounds = {"min": -(-least // multiple) * multiple, "max": most // multiple * multiple,
                      "multiple": multiple}
            if name in ("batch", "N") or (most and bounds["max"] < bounds["min"]):
                self.fail(root["sizes"].key_at[name], "size '%s' %s" % (
                    name, "has bounds that allow no size" if name not in ("batch", "N") else
                    "is the batch; choose another name"))
            named[name] = bounds
        return named

    def outputs(self, root):
        if "outputs" in root:
            return [t.id for t in self.find_all(root["outputs"])]
        read = {i for t in self.graph.tensors for i in t.inputs}
        return [t.id for t in self.graph.tensors if t.kind == "value" and t.op != "assign" and
                t.id not in read]

    def loss(self, root):
        if "loss" not in root:
            return None
        t = self.find(root["loss"], root.value_at["loss"])
        if t.kind != "value" or t.dtype != "f32" or any(dim != 1 for dim in t.shape):
            self.fail(root.value_at["loss"], "the loss is %s; it must be one computed f32 number: reduce it "
                      "with mean or sum" % (t.type_text() if t.kind == "value" else "no computed value"))
        return t.id

    def optimizer(self, root):
        if "optimizer" not in root:
            return None
        given = root["optimizer"]
        part = self.variant(given, root.value_at["optimizer"], "type", optimizers(), "the optimizer")
        values = self.filled(given, part)
        for key in values:
            if key in table.LISTS:
                values[key] = tuple(f32(x) for x in values[key])
                if key == "betas" and 1.0 in values[key]:
                    self.fail(given.value_at[key],
                              "betas: a float cannot tell it from 1; use a smaller number")
            elif not isinstance(values[key], (bool, str)):
                values[key] = f32(values[key])
        if values.get("nesterov") and (values["momentum"] == 0 or values["dampening"] != 0):
            self.fail(given.value_at["nesterov"], "nesterov needs a momentum above 0 and no dampening")
        return dict({"type": given["type"]}, **values)

    def ema_decay(self, root, values):
        decay = f32(values["ema_decay"])
        if decay == 1:
            self.fail(root.value_at["ema_decay"],
                      "ema_decay: a float cannot tell it from 1; use a smaller number")
        return decay

    def fuse(self, root):
        given = root.get("fuse", Object(0))
        pairs = {key: tuple(tuple(t.id for t in self.find_all(two)) for two in given.get(key, ()))
                 for key in ("never", "always")}
        schedule = given.get("schedule", {})
        return dict(pairs, schedule={name: dict(sorted(schedule[name].items())) for name in sorted(schedule)})


@lru_cache(maxsize=None)
def builder_arguments(op):
    if table.follows(op):
        return tuple(one.name for one in table.rows()[op].arguments)
    return tuple(inspect.signature(getattr(Graph, op)).parameters)


def parse(text, path="model.json"):
    """The Model of a spec's text."""
    return Loader(json_text.Source(text, path)).model()


def load(path, fixed=None):
    """The Model of a spec file, or of one file with its spec and weights. fixed: numbers that stand for named
    sizes."""
    try:
        with open(path, "rb") as file:
            data = file.read(json_text.MAX_BYTES + 1)
        if is_safetensors(data):
            data = spec_in(path)
    except OSError as fault:
        raise SpecError("%s: cannot be read: %s" % (path, fault.strerror)) from None
    except FileError as fault:
        raise SpecError(str(fault)) from None
    return Loader(json_text.decode(data, path), fixed).model()

"""Specs: the hashes that C and Python share, the schema against the code, and refusals with their place."""
import inspect
import json
import os
import random
import re
import subprocess
import sys
import unittest

from generator import graph, json_text, schema, spec, table
from generator.json_text import SpecError

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
INPUT = ('{"op":"input","name":"x","shape":["N",4,8,8]},\n'
         '{"op":"input","name":"y","shape":["N"],"dtype":"i64"},\n'
         '{"op":"input","name":"v","shape":["N",4]},\n')


def vectors():
    with open(os.path.join(HERE, "expected", "vectors.txt"), encoding="ascii") as file:
        for line in file:
            expected, text = line.rstrip("\n").split(" ", 1)
            if not text.startswith("{"):
                with open(os.path.join(HERE, "expected", text), encoding="utf-8") as inner:
                    text = inner.read()
            yield expected, text


def model_of(*entries, **rest):
    return spec.parse(json.dumps(dict({"gpunn_spec": 1, "tensors": list(entries)}, **rest)))


X = {"op": "input", "name": "x", "shape": ["N", 4]}


class Hashes(unittest.TestCase):
    def test_vectors(self):
        kinds = {}
        for expected, text in vectors():
            model = spec.parse(text)
            self.assertEqual(model.sha256(), expected, text)
            kinds.update((t.op, True) for t in model.tensors)
        self.assertEqual(sorted(set(table.ops()) - set(kinds) - {"fusion", "relayout", "custom", "assign"}),
                         [], "ops that no vector has")

    def test_text(self):
        model = model_of(
            {"op": "input", "name": "x", "shape": ["N", 3, 28, 28]},
            {"op": "conv2d", "name": "c", "inputs": ["x"], "out_channels": 6, "kernel_size": 5, "padding": 2},
            {"op": "leaky_relu", "inputs": ["c"]}, {"op": "reshape", "inputs": ["c"], "shape": ["2N", 2352]})
        self.assertEqual(model.text(), "gpunn 1 f32\n"
                         "input f32 [N,3,28,28]\n"
                         "parameter f32 [6,3,5,5]\n"
                         "parameter f32 [6]\n"
                         "conv2d stride=1,1 padding=2,2 dilation=1,1 groups=1 f32 [N,6,28,28] <- 0 1 2\n"
                         "leaky_relu negative_slope=0.00999999978 f32 [N,6,28,28] <- 3\n"
                         "reshape f32 [2N,2352] <- 3\n")

    def test_order_of_keys_names_and_training_change_nothing(self):
        order = random.Random(1)

        def shuffled(value):
            if isinstance(value, list):
                return [shuffled(item) for item in value]
            if not isinstance(value, dict):
                return value
            keys = list(value)
            order.shuffle(keys)
            return {key: shuffled(value[key]) for key in keys}

        for expected, text in list(vectors())[:40]:
            if re.search(r"-0[,}\]]", text):  # which Python's json would make a 0
                continue
            root = shuffled(json.loads(text))
            root.update(name="another", optimizer={"type": "sgd"}, math="fast")
            root.pop("loss", None)
            self.assertEqual(spec.parse(json.dumps(root, indent=3)).sha256(), expected)

    def test_hash_seed(self):
        code = ("from generator import spec; "
                "m = spec.load('tests/generator/expected/vectors/transformer_block.json'); "
                "print(m.sha256(), m.fuse, m.optimizer, m.outputs, [t.label for t in m.tensors])")
        outputs = {subprocess.run([sys.executable, "-c", code], cwd=ROOT,
                                  env=dict(os.environ, PYTHONHASHSEED=seed), check=True,
                                  stdout=subprocess.PIPE).stdout for seed in ("0", "1", "12345")}
        self.assertEqual(len(outputs), 1)


class Models(unittest.TestCase):
    def test_what_is_not_in_the_text(self):
        model = model_of(X, {"op": "linear", "name": "fc", "inputs": ["x"], "out_features": 2,
                             "trainable": False, "as": "out", "parameters": {"bias": {
                                 "init": {"kind": "normal", "b": 0.5}, "trainable": True, "lr_scale": 0.1}}},
                         {"op": "mean", "id": "m", "inputs": ["fc"]}, loss="m", outputs=["out"],
                         clip_grad_norm=0.1, clip_grad_value=2, ema_decay=0.9,
                         optimizer={"type": "adam", "weight_decay": 0.1}, fuse={"never": [["fc", "m"]]})
        weight, bias, out, mean = model.tensors[1:]
        self.assertEqual((weight.name, weight.init, weight.trainable),
                         ("fc.weight", ("kaiming_uniform", 4.0, 0.0), False))
        self.assertEqual((bias.init, bias.trainable, bias.lr_scale),
                         (("normal", 0.0, 0.5), True, graph.f32(0.1)))
        self.assertEqual((out.name, out.layer, out.label, mean.label), ("out", "fc", "out", "m"))
        self.assertEqual((model.outputs, model.loss), ([3], 4))
        self.assertEqual((model.clip_grad_norm, model.clip_grad_value, model.ema_decay),
                         (graph.f32(0.1), 2, graph.f32(0.9)))
        self.assertEqual(model.optimizer,
                         {"type": "adam", "lr": graph.f32(0.001), "betas": (graph.f32(0.9), graph.f32(0.999)),
                          "eps": graph.f32(1e-8), "weight_decay": graph.f32(0.1), "maximize": False})
        self.assertEqual(model.fuse, {"never": ((3, 4),), "always": (), "schedule": {}})

    def test_storage_of_parameters(self):
        def made(shape, **settings):
            return model_of({"op": "parameter", "name": "w", "shape": shape, **settings}, outputs=["w"])
        w = made([2, 256], storage="Q4_K", frozen=True).tensors[0]
        self.assertEqual((w.storage, w.frozen), ("Q4_K", True))
        self.assertEqual(made([3], storage="f32").tensors[0].storage, "f32")
        with self.assertRaisesRegex(SpecError, "a row of 32 numbers is no whole number of blocks of Q4_K"):
            made([256, 32], storage="Q4_K")
        with self.assertRaisesRegex(SpecError, "a row of 96 numbers is no whole number of blocks of NF4"):
            made([64, 96], storage="NF4")
        with self.assertRaisesRegex(SpecError, "one of f32, Q8_0"):
            made([256, 32], storage="Q9_K")
        linear = model_of(dict(X, shape=["N", 32]), {
            "op": "linear", "name": "fc", "inputs": ["x"], "out_features": 2, "frozen": True,
            "parameters": {"weight": {"storage": "Q8_0"}}})
        self.assertEqual([(t.storage, t.frozen) for t in linear.tensors[1:3]], [("Q8_0", True), (None, True)])

    def test_defaults(self):
        model = model_of(X, {"op": "relu", "inputs": ["x"]}, {"op": "neg", "inputs": ["x"]})
        self.assertEqual((model.precision, model.math, model.layout, model.outputs, model.loss,
                          model.optimizer), ("f32", "auto", "auto", [1, 2], None, None))

    def test_references_by_every_name(self):
        model = model_of(
            X, {"op": "linear", "name": "fc", "id": "first", "as": "out", "inputs": ["x"], "out_features": 4},
            {"op": "add", "inputs": ["first", "out"]}, {"op": "add", "inputs": ["fc.bias", "x"]},
            {"op": "cast", "id": "same", "inputs": ["x"], "dtype": "f32"}, {"op": "neg", "inputs": ["same"]})
        self.assertEqual([t.inputs for t in model.tensors[4:]], [(3, 3), (2, 0), (0,)])


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(schema.PATH, encoding="ascii") as file:
            cls.raw = json.load(file)

    def test_it_is_what_the_tables_tell(self):
        with open(schema.PATH, encoding="ascii") as file:
            self.assertEqual(file.read(), schema.fresh(), "run python3 -m generator.schema")

    def test_every_op_has_its_builder(self):
        for name in spec.ops():
            if name in table.formulas():
                self.assertTrue(hasattr(graph.Graph, "fits_" + table.formulas()[name].fits), name)
            elif not (table.ops().get(name) and table.ops()[name].arity or table.follows(name)):
                self.assertTrue(hasattr(graph.Graph, name),
                                "the schema has an op '%s' without a builder" % name)

    def test_every_op_stands_among_the_tensors(self):
        refs = [one["$ref"].split("/")[-1] for one in self.raw["$defs"]["tensor"]["oneOf"]]
        self.assertEqual(refs, list(self.raw["$defs"]["ops"]))
        refs = [one["$ref"].split("/")[-1] for one in self.raw["$defs"]["optimizer"]["oneOf"]]
        self.assertEqual(refs, list(self.raw["$defs"]["optimizers"]))

    def test_builders_take_what_the_schema_offers(self):
        outside = {"op", "id", "as", "inputs", "trainable", "parameters", "name", "decay", "lr_scale",
                   "frozen", "storage"}
        for name, part in spec.ops().items():
            if not (table.ops().get(name) and table.ops()[name].arity or table.follows(name)):
                arguments = inspect.signature(getattr(graph.Graph, name)).parameters
                offered = set(part["properties"]) - outside
                self.assertEqual(offered - set(arguments), set(), name)
                for key, argument in arguments.items():
                    if key in offered:
                        optional = key not in part["required"] and "default" not in part["properties"][key]
                        self.assertEqual(argument.default is None and key != "consts", optional,
                                         "%s %s" % (name, key))
                self.assertEqual("name" in arguments,
                                 name in ("input", "parameter", "state") or "as" in part["properties"], name)

    def test_form(self):
        """Everything has a sentence for messages, and only what spec.py supports is used."""
        known = {"$ref", "title", "type", "enum", "const", "anyOf", "items", "minItems", "maxItems",
                 "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMaximum", "properties",
                 "required", "additionalProperties",
                 "propertyNames", "minProperties", "maxProperties", "description", "default"}

        def walk(part, named):
            self.assertLessEqual(set(part), known)
            self.assertTrue(not named or "$ref" in part or "title" in part or "const" in part or
                            part.get("enum"), part)
            for inner in part.get("properties", {}).values():
                walk(inner, True)
            for key in ("items", "additionalProperties", "propertyNames"):
                if part.get(key):
                    walk(part[key], False)
            for inner in part.get("anyOf", ()):
                walk(inner, False)

        defs = dict(self.raw["$defs"])
        for group in (defs.pop("ops"), defs.pop("optimizers")):
            for part in group.values():
                walk(part, False)
        del defs["tensor"], defs["optimizer"]
        for part in defs.values():
            walk(part, True)

    def test_defaults_are_allowed(self):
        def walk(part):
            for key, inner in part.get("properties", {}).items():
                if "default" in inner and "properties" not in inner:
                    value = json_text.read(json_text.Source(json.dumps(inner["default"]), ""))
                    self.assertTrue(spec.fits(value, inner), key)
                walk(inner)
        for part in list(spec.ops().values()) + list(spec.optimizers().values()) + [spec.schema()]:
            walk(part)


class Sizes(unittest.TestCase):
    def test_texts(self):
        """A number has one text, however it is reached. tests/unit/sizes.c tests C's."""
        for formulas, text in (
                (("2 * T - T", "T", "(T)", "T * 1"), "T"),
                (("(T + 1) * (T - 1)", "T * T - 1"), "T * T - 1"),
                (("(T - 1) / 2 + 1", "(T + 1) / 2"), "(T + 1) / 2"),
                (("T / 2 / 3", "T / 6"), "T / 6"),
                (("(T / 2 + 1) / 3", "(T + 2) / 6"), "(T + 2) / 6"),
                (("(2 * T + 1) / 4", "T / 2"), "T / 2"),
                (("H / 8 * 8", "((H - 1) / 2 + 1) * 2"), "H"),
                (("3 * batch", "3N"), "3N"),
                (("batch * T", "T * batch"), "T * batch"),
                (("5 + S - 2 * T + S", "S * 2 - T * 2 + 5"), "2 * S - 2 * T + 5"),
                (("T - T + 5",), "5")):
            builders = graph.Graph({"T": 1, "S": 1, "H": 8})
            self.assertEqual([graph.dim_text(builders.dim(formula)) for formula in formulas],
                             [text] * len(formulas))

    def test_shapes(self):
        model = spec.load(os.path.join(HERE, "expected", "vectors", "sized_images.json"))
        self.assertEqual([t.type_text() for t in model.tensors if t.op in ("max_pool2d", "pad")],
                         ["f32 [N,16,H / 4 + 1,(W + 1) / 2 + 1]", "f32 [N,32,H + 2,W + 2]"])
        self.assertEqual(model.sizes, {"H": {"min": 8, "max": 64, "multiple": 4},
                                       "W": {"min": 1, "max": 0, "multiple": 1}})


class Refused(unittest.TestCase):
    def refuse(self, text, place, sentence):
        with self.assertRaises(SpecError) as caught:
            spec.parse(text, "m.json")
        message = str(caught.exception)
        self.assertRegex(message, "^m[.]json:%s: " % place)
        self.assertRegex(message, sentence)
        self.assertNotIn("\n", message)

    def entry(self, text, place, sentence):
        self.refuse('{"gpunn_spec":1,"tensors":[' + INPUT + text + "]}", place, sentence)

    def test_states(self):
        state = '{"op":"state","name":"s","shape":[3]},{"op":"input","name":"i","dtype":"i64","shape":[3]},'
        for text, sentence in (
                ('"assign","inputs":["x","x"]', "not a state"),
                ('"assign","inputs":["s","x"]', "must be equal"),
                ('"assign","inputs":["s","s"],"position":"x"', "integers"),
                ('"assign","inputs":["s","s"],"position":"i"', "one number, or one for each"),
                ('"assign","inputs":["s","s"],"position":"i","axis":1', "axis 1"),
                ('"state","name":"t","shape":["N"]', "do not vary"),
                ('"state","name":"s","shape":[2]', "taken")):
            self.entry(state + '{"op":%s}' % text, r"4:\d+", sentence)

    def test_json(self):
        for text, place, sentence in (
                ("", "1:1", "ends"), ("nul", "1:1", "JSON value"), ("{} 3", "1:4", "behind the end"),
                ('{"a":1,\n"a":2}', "2:1", "twice"),
                ("[1,]", "1:4", "value"), ('{"a" 1}', "1:6", "':'"), ("{a:1}", "1:2", "double quotes"),
                ("[1 2]", "1:4", "','"), ("[1", "1:1", "no end"), ('"abc', "1:1", "no end"),
                ('"a\tb"', "1:3", "control"), ('"\\x"', "1:2", "escape"), ('"\\ud800"', "1:2", "surrogate"),
                ('"\\ud800\\u0041"', "1:2", "surrogate"), ('"\\u0000"', "1:2", "u0000"),
                ('"\\u12"', "1:2", "escape"), ("[01]", "1:2", "number"), ("[+1]", "1:2", "value"),
                ("[1.]", "1:2", "number"), ("[.5]", "1:2", "value"), ("[1e999]", "1:2", "too large"),
                ("[NaN]", "1:2", "value"), ("[1_0]", "1:2", "number"),
                ("[-Infinity]", "1:2", "value"), ("[9223372036854775808]", "1:2", "64 bits"),
                ("[-9223372036854775809]", "1:2", "64 bits"), ("[" + "1" * 5000 + "]", "1:2", "64 bits"),
                ("[" * 65, "1:65", "deeper than 64"), ('{"a":' * 65, "1:321", "deeper"),
                ("[1]\v", "1:4", "behind"), ("[tru]", "1:2", "value"), ("[truee]", "1:6", "','")):
            self.refuse(text, place, sentence)
        for data, sentence in ((b"\xff{}", "UTF-8"), (b"\xef\xbb\xbf{}", "byte order"),
                               (b'{\n"\xc0\x80"}', "2:2: .*UTF-8"),
                               (b" " * (json_text.MAX_BYTES + 1), "larger than 64 MiB")):
            with self.assertRaisesRegex(SpecError, sentence):
                json_text.decode(data, "m.json")

    def test_the_whole(self):
        whole = '{"gpunn_spec":1,"tensors":[{"op":"input","name":"x","shape":[2]}],\n %s}'
        two = ('{"gpunn_spec":1,"loss":\n"l","tensors":[{"op":"input","name":"x","shape":%s},{"op":"%s",'
               '"id":"l","inputs":["x"]}]}')
        for text, place, sentence in (
                ("[]", "1:1", "must be an object"), ("{}", "1:1", "not a gpunn spec"),
                ('{"gpunn_spec":2,"tensors":[]}', "1:15", "must be 1"),
                ('{"gpunn_spec":true,"tensors":[]}', "1:15", "must be 1"),
                ('{"gpunn_spec":1}', "1:1", "lacks 'tensors'"),
                ('{"gpunn_spec":1,"tensors":{}}', "1:27", "list of tensors"),
                (whole % '"loss":"x"', "2:9", "no computed value"),
                (whole % '"loss":"nope"', "2:9", "no tensor 'nope'"),
                (two % ("[2]", "relu"), "2:1", r"f32 \[2\]; it must be one"),
                (two % ("[]", "cast\",\"dtype\":\"i64"), "2:1", "i64"),
                (two % ('["N"]', "relu"), "2:1", "must be one"),
                (whole % '"precison":"f32"', "2:2", "did you mean 'precision'"),
                (whole % '"precision":"fp16"', "2:14", "one of f32"),
                (whole % '"outputs":"x"', "2:12", "list of references"),
                (whole % '"outputs":["x",1]', "2:17", "item 2 of outputs"),
                (whole % '"optimizer":{"type":"adm"}', "2:22", "did you mean 'adam'"),
                (whole % '"optimizer":3', "2:14", "an object"),
                (whole % '"optimizer":{"type":"sgd","nesterov":true}', "2:39", "momentum above 0"),
                (whole % '"optimizer":{"type":"adam","betas":[0.9,1]}', "2:42", "below 1"),
                (whole % '"optimizer":{"type":"adam","betas":[0.9,0.99999999999]}', "2:37", "from 1"),
                (whole % '"optimizer":{"type":"adam","lr":-1}', "2:34", "0 or more"),
                (whole % '"optimizer":{"type":"adam","momentum":0}', "2:29", "adam has no 'momentum'"),
                (whole % '"ema_decay":1', "2:14", "from 0 to below 1"),
                (whole % '"ema_decay":"0.9"', "2:14", "below 1"),
                (whole % '"ema_decay":0.99999999999', "2:14", "from 1"),
                (whole % '"ema_decay":-0.5', "2:14", "from 0"),
                (whole % '"fuse":{"never":[["x"]]}', "2:19", "list of two"),
                (whole % '"fuse":{"always":[["x","z"]]}', "2:25", "'z'"),
                (whole % '"fuse":{"schedule":{"g0":{"thread":1}}}', "2:28", "did you mean 'threads'"),
                (whole % '"fuse":{"schedule":{"g 0":{}}}', "2:22", "a letter"),
                (whole % '"name":""', "2:9", "1 to 255")):
            self.refuse(text, place, sentence)

    def test_entries(self):
        for text, place, sentence in (
                ('3', "4:1", "an object"), ('{}', "4:1", "lacks 'op'"), ('{"op":3}', "4:7", "a string"),
                ('{"op":"conv4d"}', "4:7", "did you mean 'conv[123]d'"),
                ('{"op":"relu"}', "4:1", "lacks 'inputs'"),
                ('{"op":"relu","inputs":["w"]}', "4:24", "no tensor 'w'"),
                ('{"op":"relu","id":"r","inputs":["r"]}', "4:33", "line 4"),
                ('{"op":"relu","id":"a","inputs":["b"]},\n{"op":"relu","id":"b","inputs":["a"]}', "4:33",
                 "only in line 5"),
                ('{"op":"relu","inputs":["x","x"]}', "4:23", "one reference"),
                ('{"op":"relu","inputs":[3]}', "4:24", "item 1"),
                ('{"op":"relu","id":"x","inputs":["v"]}', "4:19", "another tensor"),
                ('{"op":"relu","name":"","inputs":["v"]}', "4:21", "1 to 255"),
                ('{"op":"relu","name":"%s","inputs":["v"]}' % ("\u00e9" * 200), "4:21", "400 bytes"),
                ('{"op":"relu","name":"__metadata__","inputs":["v"]}', "4:21", "reserved"),
                ('{"op":"input","name":"x","shape":[1]}', "4:22", "taken"),
                ('{"op":"input","name":"q","shape":[0]}', "4:35", "item 1"),
                ('{"op":"input","name":"q","shape":["N","N"]}', "4:34", "one dimension"),
                ('{"op":"input","name":"q","shape":["2N", "N"]}', "4:34", "one dimension"),
                ('{"op":"input","name":"q","shape":["0N"]}', "4:34", "\"0N\" is not a size"),
                ('{"op":"input","name":"q","shape":[1,1,1,1,1,1,1,1,1]}', "4:34", "list of sizes"),
                ('{"op":"input","name":"q","shape":[1048576,1048576,1048576]}', "4:7", "2\\^59"),
                ('{"op":"parameter","name":"p","shape":["N"]}', "4:38", "do not vary between runs"),
                ('{"op":"parameter","name":"p","shape":[2],"init":{"kind":"uniform","a":1}}', "4:49",
                 "lower bound"),
                ('{"op":"parameter","name":"p","shape":[2],"init":{"kind":"kaiming_uniform"}}', "4:49",
                 "fan-in"),
                ('{"op":"parameter","name":"p","shape":[2],"init":{"kind":"normal","b":-1}}', "4:49",
                 "standard deviation"),
                ('{"op":"parameter","name":"p","shape":[2,2],"init":{"kind":"kaiming_uniform","a":-1}}',
                 "4:51", "fan-in, 0"),
                ('{"op":"parameter","name":"p","shape":[2],"init":{"kind":"normal","c":1}}', "4:66",
                 "no 'c'"),
                ('{"op":"constant","shape":[2],"values":[1]}', "4:39", "1 values .* 2 elements"),
                ('{"op":"constant","shape":[2],"values":[1,"x"]}', "4:42", "item 2"),
                ('{"op":"linear","name":"l","inputs":["v"],"out_features":"10"}', "4:57", "integer of 1"),
                ('{"op":"linear","name":"l","inputs":["v"],"out_features":10.0}', "4:57", "integer of 1"),
                ('{"op":"linear","name":"l","inputs":["v"],"out_features":true}', "4:57", "integer of 1"),
                ('{"op":"linear","name":"l","inputs":["v"],"out_features":2147483648}', "4:57",
                 "integer of 1"),
                ('{"op":"linear","name":"l","inputs":["y"],"out_features":1}', "4:36", "cast"),
                ('{"op":"linear","name":"l","inputs":["v"],"out_features":1,'
                 '"bias":false,"parameters":{"bias":{}}}', "4:86", "no bias"),
                ('{"op":"linear","name":"l","id":"a","inputs":["v"],"out_features":1},\n'
                 '{"op":"linear","name":"l","id":"b","inputs":["v"],"out_features":1}', "5:23",
                 "another layer"),
                ('{"op":"conv2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":3,"strid":1}',
                 "4:75", "did you mean 'stride'"),
                ('{"op":"conv2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":[3,"a"]}',
                 "4:76", "item 2 of kernel_size"),
                ('{"op":"conv2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":[3,3,3]}', "4:73",
                 "list of two"),
                ('{"op":"conv2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":9}', "4:73",
                 r"spans 9 along axis 2, but the padded input \[N, 4, 8, 8\] only 8; use a smaller kernel"),
                ('{"op":"conv2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":[1,6],"padding":1,'
                 '"dilation":2}',
                 "4:73", r"spans 11 along axis 3, but the padded input \[N, 4, 8, 8\] only 10"),
                ('{"op":"conv2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":1,"groups":3}',
                 "4:84", "divide both"),
                ('{"op":"conv2d","name":"c","inputs":["v"],"out_channels":8,"kernel_size":3}', "4:36",
                 "height, width"),
                ('{"op":"conv1d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":3}', "4:36",
                 "channels, length"),
                ('{"op":"conv3d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":[3,3]}', "4:73",
                 "list of three"),
                ('{"op":"conv3d","name":"c","inputs":["x"],"out_channels":8,'
                 '"kernel_size":3,"output_padding":1}', "4:75", "no 'output_padding'"),
                ('{"op":"conv_transpose2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":3,'
                 '"output_padding":1}', "4:102", "less than the stride, 1, or the dilation, 1"),
                ('{"op":"conv_transpose2d","name":"c","inputs":["x"],"out_channels":8,"kernel_size":3,'
                 '"padding":9}', "4:95", "leaves nothing along axis 2"),
                ('{"op":"max_pool2d","inputs":["x"],"kernel_size":2,"padding":2}', "4:61",
                 "half of the kernel"),
                ('{"op":"batch_norm2d","name":"b","inputs":["x"],"eps":0}', "4:54", "a positive number"),
                ('{"op":"batch_norm2d","name":"b","inputs":["x"],"momentum":2}', "4:59", "from 0 to 1"),
                ('{"op":"batch_norm1d","name":"b","inputs":["y"]}', "4:42", "i64, but f32"),
                ('{"op":"layer_norm","name":"b","inputs":["v"],"dims":2}', "4:40", "is the batch"),
                ('{"op":"layer_norm","name":"b","inputs":["v"],"dims":3}', "4:53", "to its rank"),
                ('{"op":"prelu","name":"b","inputs":["v"],"num_parameters":3}', "4:58", "channels of axis 1"),
                ('{"op":"input","name":"q","shape":[2,"N",4]},\n'
                 '{"op":"transformer_encoder","name":"e","inputs":["q"],"nhead":1,"num_layers":2147483647}',
                 "5:78", "the model has room for [0-9]+ layers more"),
                ('{"op":"input","name":"q","shape":["N",2147483647]},\n{"op":"input","name":"r",'
                 '"dtype":"i64","shape":["N"]},\n'
                 '{"op":"multi_margin_loss","inputs":["q","r"]}', "6:36", r"2\^24"),
                (",".join(['{"op":"relu","inputs":["v"]}'] * 30000), "4:[0-9]+", "more than 30000 tensors"),
                ('{"op":"dropout","inputs":["v"],"p":1.5}', "4:36", "from 0 to 1"),
                ('{"op":"add","inputs":["x","v"]}', "4:22", "do not broadcast"),
                ('{"op":"softmax","inputs":["v"],"dim":2}', "4:38", "-2 to 1"),
                ('{"op":"mul_scalar","inputs":["v"],"value":1e39}', "4:43", "float can hold"),
                ('{"op":"mul_scalar","inputs":["v"],"value":"nan"}', "4:43", "float can hold"),
                ('{"op":"matmul","inputs":["v","v"]}', "4:25", "must be equal"),
                ('{"op":"parameter","name":"p","shape":[4]},\n{"op":"matmul","inputs":["v","p"]}', "5:25",
                 "two axes or more"),
                ('{"op":"parameter","name":"p","shape":[4]},\n{"op":"matmul","inputs":["p","v"]}', "5:25",
                 "two axes or more"),
                ('{"op":"parameter","name":"p","shape":[3]},\n{"op":"add","inputs":["v","p"]}', "5:22",
                 r"axis 1: 4 against 3\)$"),
                ('{"op":"flatten","id":"f","inputs":["y"]}', "4:35", "is needed"),
                ('{"op":"permute","id":"q","inputs":["v"],"dims":[1,0]},\n{"op":"cross_entropy",'
                 '"inputs":["q","y"]}', "5:32", "do not fit"),
                ('{"op":"parameter","name":"p","shape":[4]},\n{"op":"cross_entropy","inputs":["p","y"]}',
                 "5:32", "do not fit"),
                ('{"op":"cast","inputs":["v"],"dtype":"f16"}', "4:37", "one of"),
                ('{"op":"cast","inputs":["v"],"dtype":"f32","name":"w"}', "4:50",
                 "returns an existing tensor"),
                ('{"op":"cast","inputs":["v"],"dtype":"f32","name":"v"}', "4:50",
                 "returns an existing tensor"),
                ('{"op":"relu","inputs":["v"],"id":"%s"}' % ("\u00e9" * 128), "4:34", "256 bytes"),
                ('{"op":"reshape","inputs":["x"],"shape":["N",3]}', "4:40", "as many elements"),
                ('{"op":"reshape","inputs":["x"],"shape":[-1,3]}', "4:41", "integer of 1 or more"),
                ('{"op":"permute","inputs":["v"],"dims":[0,0]}', "4:39", "listed twice"),
                ('{"op":"permute","inputs":["v"],"dims":[0]}', "4:39", "list each"),
                ('{"op":"concat","inputs":["v","x"]}', "4:25", "may differ only"),
                ('{"op":"slice","inputs":["v"],"dim":0}', "4:36", "is the batch"),
                ('{"op":"slice","inputs":["v"],"dim":1,"start":4}', "4:46", "is empty"),
                ('{"op":"pad","inputs":["v"],"before":[1]}', "4:37", "is the batch"),
                ('{"op":"pad","inputs":["v"],"before":[0,1,1]}', "4:37", "does not exist"),
                ('{"op":"sum","inputs":["v"],"dims":[2]}', "4:35", "not one of"),
                ('{"op":"scaled_dot_product_attention","inputs":["v","v"]}', "4:47", "or one value for all"),
                ('{"op":"scaled_dot_product_attention","inputs":["v","v","v"]}', "4:47",
                 r"q is \[N, 4\], but \[n, heads, rows, e\]"),
                ('{"op":"scaled_dot_product_attention","inputs":["x","x","x"],"mask":"y"}', "4:68",
                 "mask is i64, but must be bool"),
                ('{"op":"scaled_dot_product_attention","inputs":["x","x","x"],"mask":"v"}', "4:47",
                 "do not broadcast"),
                ('{"op":"scaled_dot_product_attention","inputs":["x","x","x"],"dropout_p":2}', "4:73",
                 "from 0 to 1"),
                ('{"op":"slice","id":"s","inputs":["x"],"dim":1,"end":2},\n'
                 '{"op":"scaled_dot_product_attention","inputs":["x","s","s"]}', "5:47",
                 "q has 4 heads, but k and v have 2; set enable_gqa"),
                ('{"op":"slice","id":"s","inputs":["x"],"dim":1,"end":3},\n'
                 '{"op":"scaled_dot_product_attention","inputs":["x","s","s"],"enable_gqa":true}', "5:47",
                 "must divide"),
                ('{"op":"slice","id":"s","inputs":["x"],"dim":2,"end":3},\n'
                 '{"op":"scaled_dot_product_attention","inputs":["x","x","s"]}', "5:47",
                 "the same head size"),
                ('{"op":"cross_entropy","inputs":["v","v"]}', "4:32", "class numbers"),
                ('{"op":"cross_entropy","inputs":["x","y"]}', "4:32", "do not fit"),
                ('{"op":"cross_entropy","inputs":["v","y"],"reduction":"batchmean"}', "4:54",
                 "one of mean, sum, none"),
                ('{"op":"mse_loss","inputs":["v","x"]}', "4:27", "does not broadcast"),
                ('{"op":"bce_loss","inputs":["v","v"],"weight":"x"}', "4:27", "do not broadcast"),
                ('{"op":"bce_loss","inputs":["v","v"],"weight":"w"}', "4:46", "no tensor 'w'"),
                ('{"op":"huber_loss","inputs":["v","v"],"delta":0}', "4:47", "a positive number"),
                ('{"op":"custom","kind":"a b","inputs":["v"],"shape":[1]}', "4:23", "not a name of an op"),
                ('{"op":"custom","kind":"%s","inputs":["v"],"shape":[1]}' % ("n" * 64), "4:23",
                 "not a name of an op"),
                ('{"op":"custom","kind":"a","inputs":["v"]}', "4:1", "lacks 'shape'"),
                ('{"op":"custom","inputs":["v"],"shape":[1]}', "4:1", "lacks 'kind'"),
                ('{"op":"custom","kind":"a","inputs":[%s],"shape":[1]}' % ",".join(['"v"'] * 17), "4:36",
                 "at most 16"),
                ('{"op":"custom","kind":"a","inputs":["v"],"shape":[1],"numbers":[1,"inf"]}', "4:67",
                 "item 2 of numbers"),
                ('{"op":"custom","kind":"a","inputs":["v"],"shape":[1],"numbers":[1,2,3,4,5,6,7,8,9]}',
                 "4:64", "at most 8"),
                ('{"op":"ctc_loss","inputs":["x","v"]}', "4:27", "four references"),
                ('{"op":"ctc_loss","inputs":["x","v","y","y"]}', "4:27", "targets is f32"),
                ('{"op":"hinge_embedding_loss","inputs":["v","v"],"p":1}', "4:49", "no 'p'"),
                ('{"op":"triplet_margin_loss","inputs":["v","v","v"],"p":0}', "4:56", "above 0"),
                ('{"op":"multi_margin_loss","inputs":["v","y"],"p":3}', "4:50", "1 or 2"),
                ('{"op":"cosine_embedding_loss","inputs":["v","v","v"]}', "4:40", "do not fit"),
                ('{"op":"cosine_similarity","inputs":["v","v"],"dim":2}', "4:52", "-2 to 1"),
                ('{"op":"dice_loss","inputs":["v","v"]}', "4:28", "batch"),
                ('{"op":"reshape","name":"w","inputs":["x"],"shape":["N",4,1,1,8,8]},'
                 '{"op":"ncc_loss","inputs":["w","w"]}', "4:94", "one to three more axes"),
                ('{"op":"expr","inputs":["x"],"expression":"x +\\n  foo"}', "4:50", "foo"),
                ('{"op":"expr","inputs":["x","v"],"expression":"x + y"}', "4:23", "broadcast"),
                ('{"op":"expr","inputs":{"a b":"x"},"expression":"x"}', "4:24", "a letter"),
                ('{"op":"expr","inputs":{"a":"q"},"expression":"a"}', "4:28", "no tensor 'q'"),
                ('{"op":"expr","inputs":{"a":"x"},"expression":"a*b","consts":{"b":"1"}}', "4:66",
                 "float can hold")):
            self.entry(text, place, sentence)

    def test_sizes(self):
        for sizes, place, sentence in (
                ('[]', "1:25", "must be an object of bounds"),
                ('{"2T":{}}', "1:26", "letters, digits"),
                ('{"N":{}}', "1:26", "is the batch"),
                ('{"T":{"min":0}}', "1:37", "an integer of 1 or more"),
                ('{"T":{"most":3}}', "1:31", "no 'most'"),
                ('{"T":{"min":9,"max":15,"multiple":8}}', "1:26", "allow no size")):
            self.refuse('{"gpunn_spec":1,"sizes":%s,"tensors":[]}' % sizes, place, sentence)
        begun = ('{"gpunn_spec":1,"sizes":{"T":{},"H":{"multiple":4}},"tensors":[{"op":"input",'
                 '"name":"x","shape":["N","T",8]},\n')
        for entry, place, sentence in (
                ('{"op":"input","name":"y","shape":["T + S"]}', "2:34",
                 '"T [+] S" is not a size: it has a name that is not a size'),
                ('{"op":"input","name":"y","shape":["T - T"]}', "2:34", "never a valid size"),
                ('{"op":"input","name":"y","shape":["T T"]}', "2:34", "it has extra text at its end"),
                ('{"op":"input","name":"y","shape":["T * T * T * T * T"]}', "2:34", "too long"),
                ('{"op":"parameter","name":"y","shape":["T"]}', "2:38", "do not vary"),
                ('{"op":"reshape","inputs":["x"],"shape":["T",8]}', "2:40", "as many elements"),
                ('{"op":"slice","inputs":["x"],"dim":2,"end":"(T"}', "2:44", "a [)] is missing"),
                ('{"op":"layer_norm","name":"l","inputs":["x"],"dims":2}', "2:40", "varies between runs"),
                ('{"op":"max_pool1d","inputs":["x"],"kernel_size":2}', "2:29", "axis 1 of x .*varies")):
            self.refuse(begun + entry + "]}", place, sentence)

    def test_file(self):
        for path in (os.path.join(HERE, "no such file"), HERE):
            with self.assertRaisesRegex(SpecError, "cannot be read"):
                spec.load(path)


class Fuzz(unittest.TestCase):
    """Mutated specs give a model or a SpecError with a place."""
    PIECES = ('"', "{", "}", "[", "]", ",", ":", "0", "-1", "1e9", "1e400", "null", "true", '""', '"N"',
              '"x"', "\\", "\n", "\u00e9", "{}", "[]",
              "99999999999999999999", '"op"', '"inputs"', "2147483647", "4294967296", '"inf"', "-0.0", '"9N"',
              "1e-50", '"t1"')

    def mutated(self, rng, text):
        for _ in range(1 + rng.randrange(3)):
            start = rng.randrange(len(text) + 1)
            end = start if rng.randrange(2) else min(len(text), start + rng.randrange(12))
            text = text[:start] + rng.choice(self.PIECES + (text[start:end + 9],)) + text[end:]
        return text

    def values(self, rng, value):
        """The same tree with one value replaced by another of the document."""
        pool, places = [], []

        def walk(part):
            for key, item in list(part.items() if isinstance(part, dict) else enumerate(part)):
                pool.append(item)
                places.append((part, key))
                if isinstance(item, (dict, list)):
                    walk(item)

        walk(value)
        pool += [0, -1, 1, 2.5, "", "x", "N", None, True, [], {}, 2147483647, -2147483648, 1 << 62, [0, 0],
                 "relu", "expr", "inf"]
        part, key = places[rng.randrange(len(places))]
        part[key] = json.loads(json.dumps(pool[rng.randrange(len(pool))]))
        return json.dumps(value)

    def test_only_spec_errors(self):
        rng = random.Random(20261121)
        texts = [text for _, text in vectors() if len(text) < 1500]
        refused = 0
        for _ in range(4000):
            text = rng.choice(texts)
            text = self.mutated(rng, text) if rng.randrange(2) else self.values(rng, json.loads(text))
            try:
                spec.parse(text, "m.json").sha256()
            except SpecError as fault:
                refused += 1
                self.assertTrue(re.match(r"m\.json:\d+:\d+: .", str(fault)), str(fault))
        self.assertGreater(refused, 2000)


class Json(unittest.TestCase):
    def test_like_pythons(self):
        rng = random.Random(3)

        def made(depth):
            kind = rng.randrange(7 if depth else 5)
            return (rng.choice((None, True, False)) if kind == 0 else
                    rng.randrange(-1 << 63, 1 << 63) if kind == 1 else
                    rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300) if kind in (2, 3) else
                    "".join(chr(rng.choice((9, 10, 34, 92, 127, 233, 8364, 0x1F600)))
                            for _ in range(rng.randrange(6))) if kind == 4 else
                    [made(depth - 1) for _ in range(rng.randrange(4))] if kind == 5 else
                    {str(i) + chr(rng.randrange(32, 300)): made(depth - 1) for i in range(rng.randrange(4))})

        for i in range(500):
            value = made(4)
            text = json.dumps(value, ensure_ascii=i % 2 == 0, indent=i % 3 or None)
            self.assertEqual(json_text.read(json_text.Source(text, "")), value)
        limits = [-1 << 63, (1 << 63) - 1]
        self.assertEqual(json_text.read(json_text.Source(json.dumps(limits), "")), limits)

    def test_places(self):
        source = json_text.Source('{"a": [1,\n  {"b\\n": "x\\u00e9\\ud83d\\ude00yz"}]}', "p")
        root = json_text.read(source)
        inner = root["a"][1]
        self.assertEqual(source.place(root["a"].value_at[1]), "p:2:3")
        self.assertEqual(source.place(inner.key_at["b\n"]), "p:2:4")
        at = inner.value_at["b\n"]
        self.assertEqual([source.text[source.inside(at, i)] for i in (0, 1, 2, 3, 4)],
                         ["x", "\\", "\\", "y", "z"])


if __name__ == "__main__":
    unittest.main()

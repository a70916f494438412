"""The template language, and that every template is used."""
import os
import re
import unittest

from generator import template


class Fill(unittest.TestCase):
    def fill(self, text, **values):
        return template.fill(text, "t.c", **values)

    def test_texts_and_lists(self):
        self.assertEqual(self.fill("int ${a}${b};\n    ${lines}\nend\n", a="x", b="1",
                                   lines=["one;", "", "two;"]), "int x1;\n    one;\n\n    two;\nend\n")
        self.assertEqual(self.fill("a\n  ${none}\nb", none=[]), "a\nb\n")
        self.assertEqual(self.fill("  ${alone}\n", alone="text"), "  text\n")

    def test_conditions(self):
        text = "//@if yes\n${a}\n//@end\n  //@if !yes\nno ${b}\n  //@end\nlast"
        self.assertEqual(self.fill(text, yes=True, a="1", b="2"), "1\nlast\n")
        self.assertEqual(self.fill(text, yes=False, a="1", b="2"), "no 2\nlast\n")

    def test_values_are_not_looked_into(self):
        self.assertEqual(self.fill("${a}", a="${b} //@end $$"), "${b} //@end $$\n")

    def test_errors_say_where(self):
        for text, values, part in (("x\n${a}", {}, "t.c:2: 'a' is not known"),
                                   ("x ${a} y", {"a": ["list"]}, "t.c:1: 'a' is of the wrong kind"),
                                   ("//@if a\n//@end", {"a": "yes"}, "t.c:1: 'a' is of the wrong kind"),
                                   ("//@if a\n//@if a\n//@end", {"a": True}, "t.c:2: //@if inside //@if"),
                                   ("//@end", {}, "t.c:1: //@end without //@if"),
                                   ("//@if a\n", {"a": True}, "t.c: //@if without //@end"),
                                   ("x ${ a }", {}, "t.c:1: cannot read"),
                                   ("//@else", {}, "t.c:1: cannot read"),
                                   ("x", {"spare": "1"}, "t.c: 'spare' is not used")):
            with self.assertRaises(template.TemplateError) as caught:
                self.fill(text, **values)
            self.assertIn(part, str(caught.exception))

    def test_every_template_is_used_and_plain(self):
        with_names = ""
        folder = os.path.dirname(template.__file__)
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="ascii") as file:
                    with_names += file.read()
        for name in sorted(os.listdir(template.FOLDER)):
            with open(os.path.join(template.FOLDER, name), encoding="ascii") as file:
                text = file.read()
            self.assertIn('"%s"' % name, with_names)
            self.assertTrue(text.endswith("\n") and "\t" not in text and "\r" not in text, name)
            self.assertLessEqual(max(map(len, re.sub(r"\$\{name\}", "name", text).splitlines())), 140, name)


if __name__ == "__main__":
    unittest.main()

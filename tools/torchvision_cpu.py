"""Makes `import torchvision` work with PyTorch's CPU build: python tools/torchvision_cpu.py, once per environment, by `make`.

torchvision's wheels contain operators that were built for CUDA. They do not load with PyTorch's CPU build. The import then
fails, as torchvision registers properties of two of these operators without a check that they exist. This tool appends
declarations of both to torchvision/extension.py in this environment. Networks and transforms then work; a call of such an
operator still raises an error. If the import works already, the tool changes nothing.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

MARK = "# ---- Appended by tools/torchvision_cpu.py of SOL ----"
DECLARATIONS = f"""

{MARK}
# The operators of this wheel do not load beside PyTorch's CPU build. What _meta_registrations describes must at least be declared.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "FRAGMENT")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def import_error():
    """Returns the last line of the error of `import torchvision`, or None if it works."""
    done = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def main():
    found = importlib.util.find_spec("torchvision")
    if found is None:
        print("torchvision is not installed")
        return 1
    if import_error() is None:
        return 0
    path = Path(found.origin).parent / "extension.py"
    text = path.read_text(encoding="utf-8")
    if MARK not in text:
        path.write_text(text + DECLARATIONS, encoding="utf-8")
        print(f"{path}: declared the operators that PyTorch's CPU build cannot load")
    if error := import_error():
        print(f"torchvision cannot be imported: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

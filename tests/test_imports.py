"""What is imported when, and by whom: workers start sooner without what they don't need."""

import ast
from pathlib import Path

import pytest

import ropeway


@pytest.mark.parametrize("package", ["loader", "torch"])
def test_a_loader_stands_on_what_pools_and_arrays_offer_not_on_the_core(package):
    files = list((Path(ropeway.__file__).parent / package).glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                assert not any("_core" in str(name) for name in names), f"{file}:{node.lineno}"


def test_what_workers_and_small_programs_don_t_need_isn_t_imported(fresh):
    fresh(
        """
        import sys
        import ropeway
        assert not [name for name in sys.modules if name.startswith("ropeway.loader")]
        import ropeway.loader.worker, ropeway.loader.zygote
        late = {"numpy.random", "numpy.ma", "traceback", "ropeway.loader.loader"}
        assert not late & set(sys.modules), late & set(sys.modules)
        """
    )


def test_a_worker_imports_neither_random_numbers_nor_masked_arrays_by_itself(fresh):
    out = fresh(
        """
        import sys
        import numpy as np
        import ropeway as rw

        class Data:
            def __len__(self):
                return 40

            def __getitem__(self, index):
                return np.full(3, index), {"numpy.random", "numpy.ma"} & set(sys.modules)

        if __name__ == "__main__":
            with rw.Loader(Data(), 8, 2) as loader:
                print(set.union(*(found for _, batch in loader for found in batch)))
        """
    )
    assert out == "set()\n"


def test_all_public_names_are_there(fresh):
    fresh(
        """
        import ropeway
        missing = [name for name in ropeway.__all__ if getattr(ropeway, name, None) is None]
        assert not missing, missing
        assert set(ropeway.__all__) <= set(dir(ropeway))
        assert ropeway.loader.Loader is ropeway.Loader
        assert ropeway.loader.LoaderStats is ropeway.LoaderStats
        assert set(ropeway.loader.__all__) <= set(dir(ropeway.loader))
        for module in (ropeway, ropeway.loader):
            try:
                module.nonsense
            except AttributeError as error:
                assert "nonsense" in str(error)
            else:
                raise AssertionError
        from ropeway import *
        assert Loader is ropeway.Loader
        """
    )

import pytest

from vramcast.allocator import Allocator, Settings
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

MIB = 1 << 20


def test_options_are_read_as_torch_reads_them_spaces_and_all() -> None:
    settings = Settings.parse(" expandable_segments:True, max_split_size_mb : 128,garbage_collection_threshold:0.8")
    expected = Settings(expandable_segments=True, max_split_size_mb=128, garbage_collection_threshold=0.8)
    assert settings == expected
    assert settings.max_split_bytes == 128 * MIB


@pytest.mark.parametrize(("text", "message"), [
    ("expandable_segments:true", "use expandable_segments:True"),
    ("expandable_segments", "option:value"),
    ("max_split_size_mb:19", "use 20 or more"),
    ("max_split_size_mb:-1", "not a whole number"),
    ("max_non_split_rounding_mb:10", "use 20 or more"),
    ("large_segment_size_mb:10", "use more than 10"),
    ("large_segment_size_mb:64,max_split_size_mb:32", "use 64 or more"),
    ("garbage_collection_threshold:1.0", "less than 1"),
    ("garbage_collection_threshold:0", "more than 0"),
    ("garbage_collection_threshold:nan", "more than 0"),
    ("garbage_collection_threshold:high", "not a number"),
    ("per_process_memory_fraction:1.5", "use 0 to 1"),
    ("roundup_power2_divisions:3", "not a power of two"),
    ("roundup_power2_divisions:0", "leave the option out"),
    ("roundup_power2_divisions:[300:2]", "not a power of two"),
    ("roundup_power2_divisions:[256:2", "no closing bracket"),
    ("backend:fast", "use backend:native"),
    ("max_split_size_mb:128,,", "option:value"),
])
def test_a_bad_value_is_refused_with_what_would_work(text: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        Settings.parse(text)


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    with pytest.raises(UnknownName, match="did you mean expandable_segments"):
        Settings.parse("expandable_segment:True")


def test_what_is_not_simulated_says_so() -> None:
    with pytest.raises(Unsupported, match="simulated"):
        Settings.parse("backend:cudaMallocAsync")


@pytest.mark.parametrize(("text", "since"), [
    ("roundup_power2_divisions:4", (1, 12)),
    ("garbage_collection_threshold:0.8", (1, 12)),
    ("backend:native", (2, 0)),
    ("expandable_segments:True", (2, 1)),
    ("max_non_split_rounding_mb:30", (2, 6)),
    ("per_process_memory_fraction:0.5", (2, 9)),
    ("large_segment_size_mb:30", (2, 12)),
])
def test_an_option_is_refused_by_versions_before_it_existed(text: str, since: tuple[int, int]) -> None:
    Settings.parse(text, since)
    Settings.parse(text)
    major, minor = since
    before = (major, minor - 1) if minor else (1, 13)
    with pytest.raises(InvalidSpec, match=f"refuses .* from {major}.{minor} on"):
        Settings.parse(text, before)


def test_one_division_is_off_now_and_an_error_before_2_3() -> None:
    assert not Settings.parse("roundup_power2_divisions:1").rounds_to_divisions
    with pytest.raises(InvalidSpec, match=r"torch 2\.2 fails"):
        Settings.parse("roundup_power2_divisions:1", (2, 2))


def test_versions_before_the_simulated_ones_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"1\.9 is too old"):
        Settings.parse("", (1, 9))


def test_a_table_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="16"):
        Settings(roundup_power2_divisions=(2, 4))


def test_a_memory_fraction_needs_a_device_size() -> None:
    with pytest.raises(InvalidSpec, match="capacity_bytes"):
        Allocator(settings=Settings(per_process_memory_fraction=0.5))
